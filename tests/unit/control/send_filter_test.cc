#include "control/send_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "control/packet.h"
#include "protocol/limits.h"

namespace weightcast::control {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const protocol::WorkerMessage kPublished = protocol::Published{.number = 1, .run = {}};

class SendFilterTest : public ::testing::Test {
 protected:
  /// The names of what goes out now.
  std::vector<std::string_view> Sent() {
    std::vector<std::string_view> names;
    while (const auto out = link_->Next()) names.push_back(out->packet->name);
    return names;
  }
  void Push(const protocol::WorkerMessage& message) { EXPECT_TRUE(filter_.Push(message).ok()); }

  const std::shared_ptr<SessionLink> link_ = std::make_shared<SessionLink>();
  SendFilter filter_{link_, "host:1"};
};

TEST_F(SendFilterTest, WhatComesBeforeTheFirstSessionWaitsForIt) {
  link_->Hold();
  Push(kPublished);
  EXPECT_THAT(Sent(), IsEmpty());
  filter_.BeginSession();
  Push(protocol::Leave{});
  EXPECT_THAT(Sent(), ElementsAre("Published", "Leave"));
}

TEST_F(SendFilterTest, ALaterSessionBeginsWithARegistration) {
  const protocol::WorkerMessage registrations[] = {protocol::Register{}, protocol::Suspended{},
                                                   protocol::EngineCommandResult{}};
  filter_.BeginSession();
  for (const auto& registration : registrations) {
    Push(kPublished);
    filter_.BeginSession();
    Push(kPublished);
    Push(protocol::EngineCommandResult{.order = 7, .status = {}});
    EXPECT_THAT(Sent(), IsEmpty());
    Push(registration);
    Push(kPublished);
    EXPECT_THAT(Sent(), ElementsAre(MakePacket(registration).value()->name, "Published"));
  }
}

TEST_F(SendFilterTest, NothingIsKeptBetweenSessions) {
  filter_.BeginSession();
  Push(kPublished);
  filter_.EndSession();
  Push(protocol::Register{});
  EXPECT_TRUE(link_->drained());
  filter_.BeginSession();
  Push(kPublished);
  EXPECT_TRUE(link_->drained()) << "the registration was the last session's";
}

TEST_F(SendFilterTest, NothingIsKeptOnceClosed) {
  filter_.BeginSession();
  filter_.Close();
  Push(protocol::Register{});
  EXPECT_TRUE(link_->drained());
}

TEST_F(SendFilterTest, WhatCannotBeQueuedIsAnErrorOnlyIfItWouldBe) {
  Status status;
  while (status.ok()) status = filter_.Push(kPublished);
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("too many messages wait for the controller at host:1"));
  filter_.EndSession();
  Push(kPublished);
}

}  // namespace
}  // namespace weightcast::control
