#include "control/message_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weightcast::control {
namespace {

using ::testing::SizeIs;

const std::string kModel = "policy";
const protocol::WorkerName kThirdTrainer{.role = protocol::Role::kTrainer, .engine = "", .rank = 3};
const MessageTrace::Peer kPeer{kModel, kThirdTrainer};

void Receive(MessageTrace& trace, int64_t number) {
  trace.AddReceived(kPeer, static_cast<uint64_t>(number), 3, protocol::Published{.number = number});
}

TEST(MessageTrace, TellsBothDirectionsInOrderAndInWords) {
  MessageTrace trace;
  EXPECT_THAT(trace.From(0).messages, SizeIs(0));
  Receive(trace, 7);
  const protocol::Start start{.update = {.term = {.number = 1, .id = 9}, .sequence = 2},
                              .version = {},
                              .grants = {{.destination = 3, .grant = 78}}};
  trace.AddSent(kPeer, 5, *MakePacket(protocol::ControllerMessage(start)));
  const protocol::Trace all = trace.From(0);
  ASSERT_THAT(all.messages, SizeIs(2));
  EXPECT_EQ(all.messages[0].name + all.messages[0].fields, "Published{number: 7}");
  EXPECT_TRUE(all.messages[0].received);
  EXPECT_EQ(all.messages[0].worker, kThirdTrainer);
  EXPECT_EQ(all.messages[1].name + all.messages[1].fields,
            "Start{update: update 2.0 (term 1, epoch 0), grants: 1 [{destination: 3}]}");
  EXPECT_FALSE(all.messages[1].received);
  EXPECT_EQ(all.messages[1].number, 5U);
  EXPECT_GE(all.messages[1].microseconds, all.messages[0].microseconds);
  EXPECT_THAT(trace.From(1).messages, SizeIs(1));
  EXPECT_EQ(trace.From(100).first, 2U);
}

TEST(MessageTrace, ForgetsTheOldestAndAnswersInParts) {
  MessageTrace trace;
  constexpr int64_t kAll = 2 * int64_t{MessageTrace::kMost};
  for (int64_t number = 0; number < kAll; ++number) Receive(trace, number);
  EXPECT_EQ(trace.end(), uint64_t{kAll});
  uint64_t place = 0;
  int64_t expected = kAll - int64_t{MessageTrace::kMost};
  while (place < trace.end()) {
    const protocol::Trace part = trace.From(place);
    ASSERT_THAT(part.messages, SizeIs(protocol::kMaxTraced));
    for (const auto& message : part.messages) EXPECT_EQ(message.number, static_cast<uint64_t>(expected++));
    place = part.first + part.messages.size();
  }
  EXPECT_EQ(expected, kAll);
}

TEST(MessageTrace, KeepsNoMoreBytesThanItMay) {
  MessageTrace trace;
  const auto large = *MakePacket(protocol::ControllerMessage(
      protocol::Plan{.table = std::string(200'000, 'x'), .table_file = {}, .peers = {}}));
  ASSERT_FALSE(large->pieces);
  for (uint64_t number = 1; number <= 1000; ++number) trace.AddSent(kPeer, number, large);
  const uint64_t kept = trace.end() - trace.From(0).first;
  EXPECT_LE(kept * large->bytes(), MessageTrace::kMostBytes);
  EXPECT_GT((kept + 1) * large->bytes(), MessageTrace::kMostBytes);
  EXPECT_EQ(large.use_count(), static_cast<long>(kept) + 1);
}

TEST(MessageTrace, AMessageInPiecesHasNoFieldsAndIsNotKept) {
  MessageTrace trace;
  const auto large = *MakePacket(protocol::ControllerMessage(
      protocol::Plan{.table = std::string(1 << 20, 'x'), .table_file = {}, .peers = {}}));
  ASSERT_TRUE(large->pieces);
  trace.AddSent(kPeer, 1, large);
  EXPECT_EQ(trace.From(0).messages.at(0).name, "Plan");
  EXPECT_EQ(trace.From(0).messages.at(0).fields, "");
  EXPECT_EQ(large.use_count(), 1);
}

}  // namespace
}  // namespace weightcast::control
