// The rings of an inbox: records in order and whole, back-pressure, and peers that write nonsense.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "transport/shm/inbox.h"
#include "transport/shm/outbox.h"
#include "transport/shm/record_ring.h"

namespace weightcast::transport::shm {
namespace {

RecordBody BodyOf(uint64_t number) {
  RecordBody body{};
  for (size_t i = 0; i < body.size(); ++i) body[i] = number * 31 + i;
  return body;
}

class RecordRingTest : public ::testing::Test {
 protected:
  std::unique_ptr<Inbox> inbox = std::make_unique<Inbox>();
  RecordProducer producer{inbox->records, inbox->records_taken};
  RecordConsumer consumer{inbox->records, inbox->records_taken};
};

TEST_F(RecordRingTest, TakesAsManyAsFitAndGoesOnWhenSomeAreTaken) {
  for (uint32_t i = 0; i < kRecords; ++i) {
    ASSERT_TRUE(producer.HasSpace());
    producer.Push(BodyOf(i));
  }
  EXPECT_FALSE(producer.HasSpace());
  RecordBody body;
  ASSERT_TRUE(consumer.Pop(body));
  EXPECT_EQ(body, BodyOf(0));
  EXPECT_FALSE(producer.HasSpace()) << "room counts only when it is published";
  EXPECT_TRUE(consumer.Publish());
  EXPECT_TRUE(producer.HasSpace());
  EXPECT_FALSE(producer.HasSpace(2));
  EXPECT_FALSE(producer.broken());
}

TEST_F(RecordRingTest, ManyLapsKeepTheOrder) {
  RecordBody body;
  uint64_t pushed = 0;
  uint64_t popped = 0;
  std::minstd_rand random(7);
  while (popped < 20 * kRecords) {
    for (uint64_t burst = random() % kRecords; burst > 0 && producer.HasSpace(); --burst) {
      producer.Push(BodyOf(pushed++));
    }
    for (uint64_t burst = random() % kRecords; burst > 0 && consumer.Pop(body); --burst) {
      ASSERT_EQ(body, BodyOf(popped++));
    }
    consumer.Publish();
  }
  EXPECT_LE(popped, pushed);
}

TEST_F(RecordRingTest, AnImpossibleCounterOfTheReaderIsNoticed) {
  for (uint32_t i = 0; i < kRecords; ++i) producer.Push(BodyOf(i));
  inbox->records_taken.store(kRecords + 1);  // More than was ever written.
  EXPECT_FALSE(producer.HasSpace());
  EXPECT_TRUE(producer.broken());
}

TEST_F(RecordRingTest, ACounterThatRunsBackwardsIsNoticed) {
  for (uint32_t i = 0; i < kRecords; ++i) producer.Push(BodyOf(i));
  inbox->records_taken.store(10);
  ASSERT_TRUE(producer.HasSpace(10));
  for (uint32_t i = 0; i < 10; ++i) producer.Push(BodyOf(i));
  inbox->records_taken.store(9);
  EXPECT_FALSE(producer.HasSpace());
  EXPECT_TRUE(producer.broken());
}

TEST_F(RecordRingTest, StaleAndForgedSequencesAreNoRecords) {
  RecordBody body;
  for (const uint64_t forged : {uint64_t{0}, uint64_t{2}, uint64_t{kRecords}, ~uint64_t{0}}) {
    inbox->records[0].sequence.store(forged);
    EXPECT_FALSE(consumer.Pop(body));
  }
}

TEST_F(RecordRingTest, RecordsArriveWholeBetweenTwoThreads) {
  constexpr uint64_t kCount = 200'000;
  std::thread writer([&] {
    for (uint64_t i = 0; i < kCount;) {
      if (!producer.HasSpace()) {
        std::this_thread::yield();
        continue;
      }
      producer.Push(BodyOf(i++));
    }
  });
  RecordBody body;
  for (uint64_t i = 0; i < kCount;) {
    if (!consumer.Pop(body)) {
      consumer.Publish();
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(body, BodyOf(i++));
    if (i % 100 == 0) consumer.Publish();
  }
  writer.join();
  EXPECT_FALSE(producer.broken());
}

/// Both ends of one direction, as two processes would hold them.
class PayloadRingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = OwnInbox::Create();
    ASSERT_TRUE(made.ok());
    inbox.emplace(std::move(made).value());
    const auto payload = inbox->EnsurePayload();
    ASSERT_TRUE(payload.ok());
    auto fence = CreateShared(sizeof(FencePage), true);
    ASSERT_TRUE(fence.ok());
    auto seen = MapPeer(inbox->fd(), 0, sizeof(Inbox), true);
    auto page = MapPeer(fence->fd.get(), 0, sizeof(FencePage), false);
    auto ring = MapPeer(*payload, 0, kPayloadBytes, true);
    ASSERT_TRUE(seen.ok() && page.ok() && ring.ok());
    outbox.emplace(std::move(seen).value(), std::move(page).value(), bell);
    outbox->AttachPayload(std::move(ring).value());
  }
  Channel bell;
  std::optional<OwnInbox> inbox;
  std::optional<Outbox> outbox;
};

TEST_F(PayloadRingTest, PiecesOfAnySizeCrossInOneRun) {
  std::minstd_rand random(11);
  uint64_t total = 0;
  while (total < 40 * kPayloadBytes) {
    const uint64_t size = 1 + random() % (128 * 1024);
    uint64_t position = 0;
    std::byte* const room = outbox->Reserve(size, position);
    ASSERT_NE(room, nullptr) << "everything before was taken";
    std::memset(room, static_cast<int>(total % 251), size);
    outbox->Commit(position, size);
    const std::byte* const there = inbox->Payload(position, size);
    ASSERT_NE(there, nullptr);
    for (const uint64_t at : {uint64_t{0}, size / 2, size - 1}) {
      ASSERT_EQ(there[at], static_cast<std::byte>(total % 251));
    }
    inbox->TakePayload(position + size);
    inbox->Publish();
    total += size;
  }
  EXPECT_FALSE(outbox->broken());
}

TEST_F(PayloadRingTest, IsFullUntilThePeerTakes) {
  uint64_t position = 0;
  uint64_t taken_at = 0;
  for (int i = 0; i < 8; ++i) {
    ASSERT_NE(outbox->Reserve(kPayloadBytes / 8, position), nullptr);
    outbox->Commit(position, kPayloadBytes / 8);
    if (i == 0) taken_at = position + kPayloadBytes / 8;
  }
  EXPECT_EQ(outbox->Reserve(1, position), nullptr);
  inbox->TakePayload(taken_at);
  EXPECT_EQ(outbox->Reserve(1, position), nullptr);
  EXPECT_TRUE(inbox->Publish());
  EXPECT_NE(outbox->Reserve(kPayloadBytes / 8, position), nullptr);
}

TEST_F(PayloadRingTest, PositionsOutsideAreRefused) {
  const struct {
    uint64_t position, length;
  } kBad[] = {{kPayloadBytes, 1}, {0, kPayloadBytes + 1}, {1, kPayloadBytes},
              {~uint64_t{0}, 1},  {~uint64_t{0}, 2},      {kPayloadBytes / 2, kPayloadBytes / 2 + 1},
              {0, ~uint64_t{0}},  {uint64_t{1} << 63, 8}};
  for (const auto& bad : kBad) {
    EXPECT_EQ(inbox->Payload(bad.position, bad.length), nullptr) << bad.position << " " << bad.length;
  }
  EXPECT_NE(inbox->Payload(0, kPayloadBytes), nullptr);
}

TEST_F(PayloadRingTest, AnImpossibleCounterOfTheTargetIsNoticed) {
  inbox->shared().payload_taken.store(1);
  uint64_t position = 0;
  EXPECT_EQ(outbox->Reserve(1, position), nullptr);
  EXPECT_TRUE(outbox->broken());
}

}  // namespace
}  // namespace weightcast::transport::shm
