// Grants: who may write when, signals, and that after Revoked nothing lands.
#include <atomic>
#include <set>
#include <thread>
#include <tuple>

#include "contract/suite.h"

namespace weightcast::transport {
namespace {

class GrantTest : public PairTest {
 protected:
  static constexpr size_t kSize = 512U << 10;
  static constexpr GrantName kGrant{.slot = 1, .id = 11};

  void SetUp() override {
    PairTest::SetUp();
    source.Fill(1);
    Map(source, target, Access::kGranted);
  }
  void Open(GrantName grant) { ASSERT_TRUE(b.transport().OpenGrant(Pair::kB, grant, {}).ok()); }
  void RevokeAndWait(GrantName grant) {
    const size_t before = b.revoked.size();
    b.transport().Revoke(Pair::kB, grant);
    ASSERT_TRUE(pair.Until([&] { return b.revoked.size() > before; }));
    ASSERT_EQ(b.revoked.back(), grant);
  }
  [[nodiscard]] Op SignallingWrite(GrantName grant, uint32_t chunk, uint64_t length) const {
    Op op = WriteOp(0, 0, length, grant);
    op.has_signal = true;
    op.signal = {.grant = grant, .transfer = 5, .chunk = chunk, .chunks = 100, .checksum = 0xabcdef};
    return op;
  }
  [[nodiscard]] Op SignalOp(GrantName grant, uint32_t chunk) const {
    Op op = SignallingWrite(grant, chunk, 0);
    op.kind = OpKind::kSignal;
    return op;
  }
  TestMemory source = NewMemory(kSize);
  TestMemory target = NewMemory(kSize);
};

TEST_P(GrantTest, NothingLandsBeforeItOpensNorAfterItIsRevoked) {
  target.Wipe();
  EXPECT_EQ(Run(WriteOp(0, 0, kSize)).code, Code::kPermission);
  EXPECT_EQ(Run(WriteOp(0, 0, kSize, kGrant)).code, Code::kFenced);
  EXPECT_TRUE(target.Wiped());
  Open(kGrant);
  EXPECT_EQ(Run(WriteOp(0, 0, kSize, kGrant)).code, Code::kOk);
  EXPECT_TRUE(SameBytes(source.Read(), target.Read()));
  EXPECT_EQ(Run(WriteOp(0, 0, kSize, {.slot = kGrant.slot, .id = 12})).code, Code::kFenced);
  EXPECT_EQ(Run(WriteOp(0, 0, kSize, {.slot = 2, .id = kGrant.id})).code, Code::kFenced);
  RevokeAndWait(kGrant);
  target.Wipe();
  const Completion late = Run(WriteOp(0, 0, kSize, kGrant));
  EXPECT_EQ(late.code, Code::kFenced);
  EXPECT_TRUE(target.Wiped());
}

TEST_P(GrantTest, SignalsArriveWholeAfterTheirBytes) {
  Open(kGrant);
  const uint64_t cookie = a.Post(Pair::kA, 0, SignallingWrite(kGrant, 3, kSize));
  ASSERT_TRUE(pair.Until([&] { return !b.signals.empty(); }));
  // At this very moment, before the writer has received it.
  EXPECT_TRUE(SameBytes(source.Read(), target.Read()));
  const Signal& signal = b.signals[0].signal;
  EXPECT_EQ(b.signals[0].link, Pair::kB);
  EXPECT_EQ(signal.grant, kGrant);
  EXPECT_EQ(std::tuple(signal.transfer, signal.chunk, signal.chunks, signal.checksum),
            std::tuple(5U, 3U, 100U, 0xabcdefU));
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kOk);
  EXPECT_EQ(Run(SignalOp(kGrant, 4)).code, Code::kOk);
  ASSERT_TRUE(pair.Until([&] { return b.signals.size() == 2; }));
  EXPECT_EQ(b.signals[1].signal.chunk, 4U);
}

TEST_P(GrantTest, ASignalFollowsTheWritesBeforeItOnItsLane) {
  Open(kGrant);
  for (uint32_t round = 0; round < 50; ++round) {
    source.Fill(round);
    for (size_t at = 0; at < kSize; at += kSize / 4) a.Post(Pair::kA, 0, WriteOp(at, at, kSize / 4, kGrant));
    a.Post(Pair::kA, 0, SignalOp(kGrant, round));
    ASSERT_TRUE(pair.Until([&] { return b.signals.size() == round + 1; }));
    ASSERT_TRUE(SameBytes(source.Read(), target.Read()));
    ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
  }
}

TEST_P(GrantTest, ASignalIsWithheldWhenAWriteBeforeItWasRefused) {
  Open(kGrant);
  const TestMemory closed = NewMemory(kSize);
  Op forbidden = WriteOp(0, 0, 64, kGrant);
  forbidden.remote = a.Import(Pair::kA, b.Register(closed, Access::kRead));
  const Op outside = WriteOp(0, kSize, 64, kGrant);
  Op nowhere = WriteOp(0, 0, 64, kGrant);
  nowhere.local = 1U << 20;
  uint32_t chunk = 0;
  for (const auto& [refused, code] :
       {std::pair(forbidden, Code::kPermission), std::pair(outside, Code::kOutOfBounds),
        std::pair(nowhere, Code::kInvalidArgument)}) {
    for (const Op& with_signal : {SignallingWrite(kGrant, 1000, 64), SignalOp(kGrant, 1000)}) {
      a.Post(Pair::kA, 0, WriteOp(0, 0, 64, kGrant));
      const uint64_t first = a.Post(Pair::kA, 0, refused);
      a.Post(Pair::kA, 0, WriteOp(0, 0, 64, kGrant));
      const uint64_t withheld = a.Post(Pair::kA, 0, with_signal);
      const uint64_t next = a.Post(Pair::kA, 0, SignallingWrite(kGrant, chunk, 64));
      ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
      EXPECT_EQ(a.completions[first].code, code);
      EXPECT_EQ(a.completions[withheld].code, code);
      EXPECT_EQ(a.completions[next].code, Code::kOk) << "a signal answers for its own writes alone";
      ASSERT_TRUE(pair.Until([&] { return b.signals.size() > chunk; }));
      EXPECT_EQ(b.signals[chunk].signal.chunk, chunk);
      ++chunk;
    }
  }
}

TEST_P(GrantTest, WhatWasRefusedBeforeTheFirstWriteDoesNotCount) {
  Open(kGrant);
  const TestMemory closed = NewMemory(kSize);
  Op forbidden = WriteOp(0, 0, 64, kGrant);
  forbidden.remote = a.Import(Pair::kA, b.Register(closed, Access::kRead));
  for (const Op& refused : {forbidden, WriteOp(0, kSize, 64, kGrant)}) {
    EXPECT_NE(Run(refused).code, Code::kOk);
    Op first = WriteOp(0, 0, 64, kGrant);
    first.first = true;
    a.Post(Pair::kA, 0, first);
    EXPECT_EQ(Run(SignallingWrite(kGrant, 1, 64)).code, Code::kOk);
    EXPECT_NE(Run(refused).code, Code::kOk);
    Op alone = SignalOp(kGrant, 2);
    alone.first = true;
    EXPECT_EQ(Run(alone).code, Code::kOk);
  }
  EXPECT_TRUE(pair.Until([&] { return b.signals.size() == 4; }));
}

TEST_P(GrantTest, RepeatedSignalsAreHarmless) {
  Open(kGrant);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Run(SignallingWrite(kGrant, 7, 64)).code, Code::kOk);
  PumpFor({&a, &b}, std::chrono::milliseconds(5));
  ASSERT_GE(b.signals.size(), 1U);
  for (const auto& arrived : b.signals) EXPECT_EQ(arrived.signal.chunk, 7U);
}

TEST_P(GrantTest, EverySignalOfManyArrives) {
  Open(kGrant);
  const uint32_t count = factory().name == "tcp_gpu" ? 500 : 5000;
  const uint32_t lanes = a.ready[Pair::kA];
  for (uint32_t i = 0; i < count; ++i) {
    Op op = SignallingWrite(kGrant, i, 8);
    op.signal.chunks = count;
    // Staged copies to the same bytes wait for each other.
    if (GetParam().place == TestPlace::kSecluded) op.remote_offset = uint64_t{i} * 8;
    a.Post(Pair::kA, i % lanes, op);
    if (i % 50 == 0) b.Pump();
  }
  std::set<uint32_t> chunks;
  ASSERT_TRUE(pair.Until([&] {
    for (const auto& arrived : b.signals) chunks.insert(arrived.signal.chunk);
    b.signals.clear();
    return chunks.size() == count;
  }));
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
}

TEST_P(GrantTest, StaleSignalsAreDropped) {
  Open(kGrant);
  RevokeAndWait(kGrant);
  EXPECT_EQ(Run(SignalOp(kGrant, 1)).code, Code::kFenced);
  EXPECT_EQ(Run(SignallingWrite(kGrant, 2, 64)).code, Code::kFenced);
  EXPECT_EQ(Run(SignalOp({.slot = 60, .id = 999}, 3)).code, Code::kFenced);
  PumpFor({&a, &b}, std::chrono::milliseconds(5));
  EXPECT_TRUE(b.signals.empty());
}

TEST_P(GrantTest, ASlotServesAgainUnderANewId) {
  for (uint64_t id = 100; id < 200; ++id) {
    const GrantName grant{.slot = 5, .id = id};
    Open(grant);
    EXPECT_EQ(Run(SignallingWrite(grant, static_cast<uint32_t>(id), 64)).code, Code::kOk);
    RevokeAndWait(grant);
    EXPECT_EQ(Run(WriteOp(0, 0, 64, {.slot = 5, .id = id})).code, Code::kFenced);
  }
  EXPECT_EQ(b.signals.size(), 100U);
}

TEST_P(GrantTest, SlotsAreBoundedAndExclusive) {
  Open(kGrant);
  EXPECT_EQ(b.transport().OpenGrant(Pair::kB, {.slot = kGrant.slot, .id = 12}, {}).code(), Code::kExhausted);
  EXPECT_EQ(b.transport().OpenGrant(Pair::kB, {.slot = kGrantSlots, .id = 12}, {}).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(b.transport().OpenGrant(Pair::kB, {.slot = 0, .id = 12}, {}).code(), Code::kInvalidArgument);
  EXPECT_EQ(b.transport().OpenGrant(Pair::kB, {.slot = 2, .id = 0}, {}).code(), Code::kInvalidArgument);
  for (uint32_t slot = 2; slot < kGrantSlots; ++slot) Open({.slot = slot, .id = 1000 + slot});
  EXPECT_EQ(Run(WriteOp(0, 0, 64, {.slot = 63, .id = 1063})).code, Code::kOk);
}

/// Whether the target's own code lets all bytes of this subject into place.
bool TargetPlaces(const Subject& subject) {
  const std::string_view name = subject.factory.name;
  if (name.starts_with("tcp")) return true;
  return name.starts_with("shm") &&
         (subject.on_device() || (name == "shm_ring" && subject.place == TestPlace::kPrivate));
}

TEST_P(GrantTest, AGrantOpensItsRangesAlone) {
  constexpr uint64_t kRun = 64U << 10;
  const auto [owner, id, generation] = target_region.name;
  const auto ranges = std::make_shared<const WriteRanges>(std::vector<WriteRanges::Range>{
      {.region = id, .generation = generation, .offset = 0, .length = kRun, .stride = 2 * kRun, .count = 3},
      {.region = id, .generation = generation, .offset = 5 * kRun, .length = 2 * kRun}});
  ASSERT_TRUE(b.transport().OpenGrant(Pair::kB, kGrant, ranges).ok());
  EXPECT_EQ(Run(WriteOp(0, 2 * kRun, kRun, kGrant)).code, Code::kOk);
  EXPECT_EQ(Run(WriteOp(0, 4 * kRun + 7, 3 * kRun - 7, kGrant)).code, Code::kOk) << "of two that touch";
  if (!TargetPlaces(GetParam())) GTEST_SKIP() << "the writer writes by itself: bounded by the region";
  const auto before = target.Read();
  for (const uint64_t at : {1 * kRun, 3 * kRun, 7 * kRun, 2 * kRun - 1}) {
    const Completion outside = Run(WriteOp(0, at, kRun, kGrant));
    EXPECT_EQ(outside.code, Code::kPermission) << at;
  }
  a.Post(Pair::kA, 0, WriteOp(0, 7 * kRun, 64, kGrant));
  EXPECT_EQ(Run(SignallingWrite(kGrant, 3, 64)).code, Code::kPermission) << "its signal is withheld";
  EXPECT_TRUE(b.signals.empty());
  const auto after = target.Read();
  for (const uint64_t run : {1U, 3U, 7U})
    EXPECT_TRUE(
        SameBytes(std::span(before).subspan(run * kRun, kRun), std::span(after).subspan(run * kRun, kRun)));
  // Another grant has ranges of its own.
  const GrantName other{.slot = 2, .id = 22};
  Open(other);
  EXPECT_EQ(Run(WriteOp(0, 7 * kRun, kRun, other)).code, Code::kOk);
  RevokeAndWait(kGrant);
  Open({.slot = kGrant.slot, .id = 12});
  EXPECT_EQ(Run(WriteOp(0, kRun, kRun, {.slot = kGrant.slot, .id = 12})).code, Code::kOk);
}

TEST_P(GrantTest, OtherGrantsGoOnWhenOneIsRevoked) {
  const GrantName other{.slot = 2, .id = 22};
  const TestMemory second = NewMemory(kSize);
  Op to_second = WriteOp(0, 0, kSize, other);
  to_second.remote = a.Import(Pair::kA, b.Register(second, Access::kGranted));
  Open(kGrant);
  Open(other);
  for (int i = 0; i < 4; ++i) a.Post(Pair::kA, 0, WriteOp(0, 0, kSize, kGrant));
  const uint64_t kept = a.Post(Pair::kA, 0, to_second);
  RevokeAndWait(kGrant);
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
  const Code code = a.completions[kept].code;
  // Where nobody answers for a quarter of the lease, a target of verbs takes the lanes down.
  if (code == Code::kUnavailable && factory().name.starts_with("verbs")) return;
  EXPECT_EQ(code, Code::kOk);
  EXPECT_TRUE(SameBytes(source.Read(), second.Read()));
}

/// Revokes at a random moment of a stream that never ends, then watches the memory.
TEST_P(GrantTest, AfterRevokedNothingLandsHoweverHardTheWriterTries) {
  uint64_t moment = 12345;
  const uint64_t end = factory().name == "tcp_gpu" ? 520 : 540;
  for (uint64_t id = 500; id < end; ++id) {
    const GrantName grant{.slot = 7, .id = id};
    Open(grant);
    uint32_t chunk = 0;
    const auto post = [&] {
      for (uint32_t lane = 0; lane < a.ready[Pair::kA]; ++lane) {
        std::vector<Op> ops(2, SignallingWrite(grant, chunk++, kSize));
        a.TryPost(Pair::kA, lane, ops);
      }
    };
    moment = moment * 6364136223846793005U + 1442695040888963407U;
    for (uint64_t steps = (moment >> 33) % 60; steps > 0; --steps) {
      post();
      a.Pump();
      b.Pump();
    }
    b.transport().Revoke(Pair::kB, grant);
    ASSERT_TRUE(pair.Until([&] {
      post();
      return !b.revoked.empty() && b.revoked.back() == grant;
    }));
    target.Wipe();
    for (int i = 0; i < 20; ++i) {
      post();
      a.Pump();
      b.Pump();
    }
    ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
    ASSERT_TRUE(target.Wiped()) << "round " << id;
    for (const auto& [cookie, done] : a.completions) {
      ASSERT_TRUE(done.code == Code::kOk || done.code == Code::kFenced || done.code == Code::kUnavailable);
    }
    a.Forget();
    b.Forget();
  }
}

/// The writer drives its side from a thread of its own: for the sanitizers, and for real races.
TEST_P(GrantTest, RevokeRacesWithAWriterInAnotherThread) {
  const uint64_t end = factory().name == "tcp_gpu" ? 710 : 720;
  for (uint64_t id = 700; id < end; ++id) {
    const GrantName grant{.slot = 9, .id = id};
    Open(grant);
    std::atomic<bool> stop = false;
    std::atomic<int> rounds = 0;
    std::thread writer([&] {
      while (!stop.load()) {
        std::vector<Op> ops(2, WriteOp(0, 0, kSize, grant));
        a.TryPost(Pair::kA, 0, ops);
        a.Pump();
        rounds.fetch_add(1);
      }
    });
    ASSERT_TRUE(PumpUntil({&b}, [&] { return rounds.load() > static_cast<int>(id % 7) * 10; }));
    b.transport().Revoke(Pair::kB, grant);
    ASSERT_TRUE(PumpUntil({&b}, [&] { return !b.revoked.empty() && b.revoked.back() == grant; }));
    target.Wipe();
    PumpFor({&b}, std::chrono::milliseconds(2));
    ASSERT_TRUE(target.Wiped()) << "round " << id;
    stop = true;
    writer.join();
    ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
    ASSERT_TRUE(target.Wiped()) << "round " << id;
    a.Forget();
  }
}

WC_CONTRACT(GrantTest);

}  // namespace
}  // namespace weightcast::transport
