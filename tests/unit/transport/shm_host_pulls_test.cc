// What a peer orders this processor to read out of the peer's host memory, and when a writer orders that.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "unit/transport/shm_hostile_peer.h"

namespace weightcast::transport::shm {
namespace {

using Bytes = std::vector<std::byte>;

/// A victim and a peer in one process, which may copy across.
class ShmHostPullsTest : public ::testing::Test {
 protected:
  static constexpr RegionName kSource{.owner = 1, .id = 7, .generation = 70};

  void SetUp() override {
    ASSERT_TRUE(peer.victim
                    ->Register(target, {.address = memory.data(), .length = memory.size(), .allocation{}},
                               Access::kGranted)
                    .ok());
    ASSERT_TRUE(peer.BecomeReady());
    ASSERT_TRUE(peer.victim->OpenGrant(HostilePeer::kLink, kGrant, {}).ok());
    peer.inbox.OpenSources();
    fence().generation[kSource.id].store(kSource.generation);
  }
  FencePage& fence() { return *peer.fence.mapping.As<FencePage>(); }
  [[nodiscard]] PullRecord Order(uint64_t sequence) const {
    return {.flags = kLastPiece | kSignalled | kNewScope | kFromHost,
            .slot = static_cast<uint16_t>(kGrant.slot),
            .length = static_cast<uint32_t>(source.size()),
            .grant = kGrant.id,
            .region = target.id,
            .generation = target.generation,
            .source = kSource.id,
            .source_generation = kSource.generation,
            .source_offset = reinterpret_cast<uint64_t>(source.data()),
            .sequence = sequence};
  }
  void Send(const PullRecord& order) {
    peer.Push(order);
    peer.Push(SignalRecord{.after_put = 1, .slot = order.slot, .grant = order.grant});
  }
  /// How the order went.
  Code Answer(const PullRecord& order) {
    Send(order);
    RecordBody body{};
    EXPECT_TRUE(peer.PumpUntil([&] { return peer.inbox.records().Pop(body) || peer.down; }));
    peer.inbox.Publish();
    const auto answer = Unpack<AnswerRecord>(body);
    EXPECT_EQ(answer.kind, RecordKind::kAnswer);
    EXPECT_EQ(answer.sequence, order.sequence);
    peer.Pump();
    return static_cast<Code>(answer.code);
  }
  [[nodiscard]] bool Untouched() const {
    return std::ranges::all_of(memory, [](std::byte byte) { return byte == std::byte{0x11}; });
  }

  const Bytes source = Bytes(3 * kPieceBytes + 77, std::byte{0x77});  // Several calls of the kernel.
  Bytes memory = Bytes(4 * kPieceBytes, std::byte{0x11});
  HostilePeer peer{CrossCopies::kEither};
  const RegionName target{.owner = peer.victim_self, .id = 3, .generation = 9};
};

TEST_F(ShmHostPullsTest, TheBytesAreThereBeforeTheirSignal) {
  PullRecord order = Order(1);
  order.offset = 5;
  Send(order);
  peer.Pump();
  EXPECT_EQ(peer.signals, 0U);
  ASSERT_TRUE(peer.PumpUntil([&] { return peer.signals == 1; }));
  EXPECT_TRUE(std::ranges::equal(std::span(memory).subspan(5, source.size()), source));
  EXPECT_EQ(memory[4], std::byte{0x11});
  EXPECT_EQ(memory[5 + source.size()], std::byte{0x11});
}

TEST_F(ShmHostPullsTest, PeersSeeHowManyHaveAGrant) {
  const auto writers = [this] { return peer.victim_fence.As<FencePage>()->writers.load(); };
  peer.Pump();
  EXPECT_EQ(writers(), 1U);
  peer.victim->Revoke(HostilePeer::kLink, kGrant);
  peer.Pump();
  EXPECT_EQ(writers(), 0U);
}

TEST_F(ShmHostPullsTest, WhatMayNotBeWrittenIsNotRead) {
  struct Case {
    Code code;
    void (*spoil)(PullRecord&);
  };
  const std::vector<Case> cases = {
      {Code::kFenced, [](PullRecord& it) { ++it.grant; }},
      {Code::kPermission, [](PullRecord& it) { ++it.generation; }},
      {Code::kPermission, [](PullRecord& it) { ++it.region; }},
      {Code::kOutOfBounds, [](PullRecord& it) { it.offset = 4 * kPieceBytes - 1; }},
      {Code::kOutOfBounds, [](PullRecord& it) { it.offset = UINT64_MAX; }},
      {Code::kOutOfBounds, [](PullRecord& it) { it.source_offset = 4096; }},
      {Code::kOutOfBounds, [](PullRecord& it) { it.source_offset = UINT64_MAX - 5; }},
      {Code::kCancelled, [](PullRecord& it) { ++it.source_generation; }},
      {Code::kCancelled, [](PullRecord& it) { ++it.source; }},
  };
  uint64_t sequence = 0;
  for (const Case& each : cases) {
    PullRecord order = Order(++sequence);
    each.spoil(order);
    EXPECT_EQ(Answer(order), each.code) << "case " << sequence;
  }
  peer.inbox.CloseSources();
  EXPECT_EQ(Answer(Order(++sequence)), Code::kCancelled);
  EXPECT_TRUE(Untouched());
  EXPECT_EQ(peer.signals, 0U);
  peer.inbox.OpenSources();
  EXPECT_EQ(Answer(Order(++sequence)), Code::kOk) << "the link goes on";
}

TEST_F(ShmHostPullsTest, ASourceThatIsGivenUpUnderWayIsReadNoFurtherAndNotSignalled) {
  Send(Order(1));
  peer.Pump();  // A part of it.
  EXPECT_FALSE(Untouched());
  fence().generation[kSource.id].store(0);
  RecordBody body{};
  ASSERT_TRUE(peer.PumpUntil([&] { return peer.inbox.records().Pop(body); }));
  EXPECT_EQ(Unpack<AnswerRecord>(body).code, static_cast<uint8_t>(Code::kCancelled));
  EXPECT_EQ(memory[source.size() - 1], std::byte{0x11});
  EXPECT_EQ(peer.signals, 0U);
}

/// The victim as a writer: to the peer, and to a second target that never gives it the region it asks for.
class ShmPullOrdersTest : public ShmHostPullsTest {
 protected:
  static constexpr size_t kLength = 2 * kAtOnceBytes;  // More than Post moves for itself.
  static constexpr LinkId kSecond{6};

  void SetUp() override {
    ShmHostPullsTest::SetUp();
    ASSERT_TRUE(
        peer.victim
            ->Register(here, {.address = from.data(), .length = kLength, .allocation{}}, Access::kLocal)
            .ok());
    fence().generation[there.id].store(there.generation);
    ASSERT_TRUE(peer.inbox.OpenGrant(kGrant, {}).ok());
    into.assign(kLength, std::byte{0});
  }
  void ConnectSecond() {
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    const auto offer = second->OpenLink(LinkId{1}, Role::kInitiator, peer.victim_self, "", deadline);
    const auto answer = peer.victim->OpenLink(kSecond, Role::kResponder, second_self, *offer, deadline);
    ASSERT_TRUE(second->Establish(LinkId{1}, *answer).ok());
    peer.ready = false;
    std::array<Event, 16> events;
    ASSERT_TRUE(peer.PumpUntil([&] {
      second->Progress(events);
      return peer.ready;
    }));
  }
  void Write(LinkId link, Incarnation owner, bool mappable, uint32_t times) {
    const RegionKey key{.access = Access::kGranted,
                        .mappable = mappable,
                        .address = reinterpret_cast<uint64_t>(into.data()),
                        .length = kLength};
    const auto remote = peer.victim->Import(
        link, {.owner = owner, .id = there.id, .generation = there.generation}, kLength, EncodeKey(key));
    ASSERT_TRUE(remote.ok());
    const Op op{.kind = OpKind::kWrite,
                .local = here.id,
                .remote = *remote,
                .length = kLength,
                .grant = kGrant,
                .signal = {}};
    const std::vector<Op> ops(times, op);
    ASSERT_EQ(peer.victim->Post(link, 0, ops), times);
    peer.Pump();
  }
  void WriteToSecond() { Write(kSecond, second_self, /*mappable=*/true, 1); }
  /// Whether the peer is ordered to read the second of two writes; where it is not, the victim has written
  /// it.
  bool OrdersWrite() {
    Write(HostilePeer::kLink, peer.own_self, /*mappable=*/false, 2);
    RecordBody body{};
    bool ordered = false;
    EXPECT_TRUE(peer.PumpUntil([&] {
      ordered = peer.inbox.records().Pop(body);
      return ordered || peer.completions.size() == 2;
    }));
    EXPECT_EQ(into, from);
    order = Unpack<PullRecord>(body);
    EXPECT_EQ(peer.completions.size(), ordered ? 1U : 2U);
    peer.completions.clear();
    return ordered;
  }

  Bytes from = Bytes(kLength, std::byte{0x44});
  Bytes into;
  const RegionName here{.owner = peer.victim_self, .id = 4, .generation = 1};
  const RegionName there{.owner = peer.own_self, .id = 1, .generation = 1};
  const Incarnation second_self = RandomId();
  std::unique_ptr<Transport> second =
      ShmTransport::Create({.settings = {}, .self = second_self}, CrossCopies::kEither).value();
  PullRecord order;
};

TEST_F(ShmPullOrdersTest, AWriterOfOneTargetWritesForItself) { EXPECT_FALSE(OrdersWrite()); }

TEST_F(ShmPullOrdersTest, AWriterOfTwoOrdersATargetOfOneToRead) {
  ConnectSecond();
  WriteToSecond();
  ASSERT_TRUE(OrdersWrite());
  EXPECT_EQ(order.kind, RecordKind::kPull);
  EXPECT_EQ(order.flags & (kFromHost | kLastPiece), kFromHost | kLastPiece);
  EXPECT_EQ(order.source_offset, reinterpret_cast<uint64_t>(from.data()));
  EXPECT_EQ(order.source, here.id);
  peer.Push(AnswerRecord{.sequence = order.sequence});
  ASSERT_TRUE(peer.PumpUntil([&] { return !peer.completions.empty(); }));
  EXPECT_EQ(peer.completions[0].code, Code::kOk);
}

TEST_F(ShmPullOrdersTest, ATargetOfAsManyWritersIsWrittenTo) {
  ConnectSecond();
  WriteToSecond();
  fence().writers.store(2);
  EXPECT_FALSE(OrdersWrite());
}

TEST_F(ShmPullOrdersTest, ATargetThatMayReadNoMoreIsWrittenTo) {
  ConnectSecond();
  WriteToSecond();
  ASSERT_TRUE(OrdersWrite());
  peer.Push(AnswerRecord{.code = static_cast<uint8_t>(Code::kUnavailable), .sequence = order.sequence});
  ASSERT_TRUE(peer.PumpUntil([&] { return !peer.completions.empty(); }));
  EXPECT_EQ(peer.completions[0].code, Code::kUnavailable);
  peer.completions.clear();
  EXPECT_FALSE(OrdersWrite());
}

}  // namespace
}  // namespace weightcast::transport::shm
