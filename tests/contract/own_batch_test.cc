// Writes to open device memory and reads of it over shm that are posted together: this side's device copies
// them as batches, and each of them is checked and told as if it went alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "contract/suite.h"
#include "fake_cuda/fake_cuda.h"
#include "trace/metrics.h"

namespace weightcast::transport {
namespace {

constexpr size_t kBatchPiece = 4096;
constexpr size_t kBatchCount = 200;
constexpr size_t kBatchSize = 2 * kBatchPiece * kBatchCount;

TransportFactory Shm() { return {"shm_pull", &CreateShmTransport}; }

uint64_t CallsThatCopy() {
  return fake_cuda_calls("cuMemcpyAsync") + fake_cuda_calls("cuMemcpyBatchAsync") +
         fake_cuda_calls("cuLaunchKernel");
}
uint64_t Copies() { return trace::CounterNamed("gpu.copies").value(); }

/// a's memory is of device 0, b's of device 1.
class OwnBatchTest : public ::testing::TestWithParam<OpKind> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(pair.Connect());
    mine.Fill(1);
    theirs.Fill(2);
    local = a.Register(mine, Access::kLocal);
    there = b.Register(theirs, Access::kReadWrite);
    remote = a.Import(Pair::kA, there);
    const uint64_t cookie = a.Post(Pair::kA, 0, Of(0, kBatchPiece));
    ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
    ASSERT_EQ(a.completions[cookie].code, Code::kOk);
    a.Forget();
  }
  [[nodiscard]] bool writes() const { return GetParam() == OpKind::kWrite; }
  [[nodiscard]] const TestMemory& source() const { return writes() ? mine : theirs; }
  [[nodiscard]] const TestMemory& target() const { return writes() ? theirs : mine; }
  [[nodiscard]] Op Of(size_t offset, size_t length) const {
    return {.kind = GetParam(),
            .local = local.name.id,
            .local_offset = offset,
            .remote = remote,
            .remote_offset = offset,
            .length = length,
            .grant = {},
            .signal = {}};
  }
  /// Pieces with a gap behind each, so that no two are one.
  [[nodiscard]] std::vector<Op> Apart(size_t count) const {
    std::vector<Op> ops;
    for (size_t i = 0; i < count; ++i) ops.push_back(Of(2 * i * kBatchPiece, kBatchPiece));
    return ops;
  }
  /// As an endpoint posts a vector: at most 64 at once.
  std::vector<uint64_t> PostAll(std::vector<Op> ops) {
    std::vector<uint64_t> cookies;
    for (size_t at = 0; at < ops.size();) {
      const auto end = ops.begin() + static_cast<std::ptrdiff_t>(std::min(ops.size(), at + 64));
      std::vector<Op> some(ops.begin() + static_cast<std::ptrdiff_t>(at), end);
      at += a.TryPost(Pair::kA, 0, some);
      for (const Op& op : some) cookies.push_back(op.cookie);
    }
    return cookies;
  }
  /// How all of them ended.
  std::vector<Code> Outcomes(const std::vector<uint64_t>& cookies) {
    EXPECT_TRUE(pair.Until([&] { return a.pending() == 0; }));
    std::vector<Code> codes;
    for (const uint64_t cookie : cookies) codes.push_back(a.completions[cookie].code);
    return codes;
  }
  [[nodiscard]] bool Arrived(size_t offset) const {
    const auto wanted = source().Read(offset, kBatchPiece);
    const std::vector<std::byte> expected(wanted.begin(), wanted.end());
    return SameBytes(target().Read(offset, kBatchPiece), expected);
  }

  Machine machine = std::make_unique<const FakeMachine>();
  DeviceUse use{machine};
  TestMemory mine{kBatchSize, TestPlace::kDevice};
  TestMemory theirs{kBatchSize, TestPlace::kDevice};
  Pair pair{Shm()};
  Side& a = pair.a;
  Side& b = pair.b;
  Described local;
  Described there;
  RemoteRegion remote{};
};
INSTANTIATE_TEST_SUITE_P(, OwnBatchTest, ::testing::Values(OpKind::kWrite, OpKind::kRead),
                         [](const auto& kind) { return kind.param == OpKind::kWrite ? "Write" : "Read"; });

TEST_P(OwnBatchTest, TwoHundredOfOneVectorTakeACallForEachPost) {
  target().Wipe();
  const uint64_t calls = CallsThatCopy();
  const uint64_t words = fake_cuda_calls("cuStreamWriteValue64");
  const std::vector<uint64_t> cookies = PostAll(Apart(kBatchCount));
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
  EXPECT_EQ(CallsThatCopy() - calls, 4U);
  EXPECT_EQ(fake_cuda_calls("cuStreamWriteValue64") - words, 4U);
  EXPECT_EQ(Outcomes(cookies), std::vector<Code>(kBatchCount, Code::kOk));
  for (size_t i = 0; i < kBatchCount; ++i) ASSERT_TRUE(Arrived(2 * i * kBatchPiece)) << i;
}

TEST_P(OwnBatchTest, PiecesThatFollowEachOtherAreOneCopy) {
  target().Wipe();
  const uint64_t copies = Copies();
  std::vector<Op> ops;
  for (size_t i = 0; i < 64; ++i) ops.push_back(Of(i * kBatchPiece, kBatchPiece));
  EXPECT_EQ(Outcomes(PostAll(ops)), std::vector<Code>(64, Code::kOk));
  EXPECT_EQ(Copies() - copies, 1U);
  for (size_t i = 0; i < 64; ++i) ASSERT_TRUE(Arrived(i * kBatchPiece)) << i;
}

// A copy may not go beyond an allocation, even where the next one lies right behind it.
TEST_P(OwnBatchTest, PiecesOfDifferentRegionsAreCopiedApart) {
  const Described again = a.Register(mine, Access::kLocal);
  const uint64_t copies = Copies();
  std::vector<Op> ops{Of(0, kBatchPiece), Of(kBatchPiece, kBatchPiece)};
  ops[1].local = again.name.id;
  EXPECT_EQ(Outcomes(PostAll(ops)), std::vector<Code>(2, Code::kOk));
  EXPECT_EQ(Copies() - copies, 2U);
}

TEST_P(OwnBatchTest, TheLastOfThoseToTheSameBytesStays) {
  for (int round = 0; round < 5; ++round) {
    // Twice to the same place, from different ones, amid others.
    std::vector<Op> ops = Apart(8);
    (writes() ? ops[6].remote_offset : ops[6].local_offset) = 2 * kBatchPiece + 100;
    target().Wipe();
    EXPECT_EQ(Outcomes(PostAll(ops)), std::vector<Code>(8, Code::kOk));
    const auto from = source().Read(12 * kBatchPiece, kBatchPiece);
    const std::vector<std::byte> expected(from.begin(), from.end());
    EXPECT_TRUE(SameBytes(target().Read(2 * kBatchPiece + 100, kBatchPiece), expected));
  }
}

TEST_P(OwnBatchTest, OneThatIsOutOfBoundsHasNoPartInTheOthers) {
  std::vector<Op> ops = Apart(9);
  ops[4].remote_offset = kBatchSize;
  std::vector<Code> expected(9, Code::kOk);
  expected[4] = Code::kOutOfBounds;
  EXPECT_EQ(Outcomes(PostAll(ops)), expected);
  for (const size_t i : {3, 5, 8}) EXPECT_TRUE(Arrived(2 * i * kBatchPiece)) << i;
}

// Each region is looked at, not only that of the first.
TEST_P(OwnBatchTest, OneToARegionThatIsClosedIsRefusedAndTheOthersAreNot) {
  const TestMemory other(kBatchPiece, TestPlace::kDevice);
  other.Wipe();
  const Described closing = b.Register(other, Access::kReadWrite);
  std::vector<Op> ops = Apart(6);
  ops[3].remote = a.Import(Pair::kA, closing);
  ops[3].remote_offset = 0;
  EXPECT_EQ(Outcomes(PostAll(ops)), std::vector<Code>(6, Code::kOk));
  b.transport().Deregister(closing.name.id);
  ASSERT_TRUE(pair.Until([&] { return b.deregistered.contains(closing.name.id); }));
  other.Wipe();
  std::vector<Code> expected(6, Code::kOk);
  expected[3] = Code::kPermission;
  EXPECT_EQ(Outcomes(PostAll(ops)), expected);
  EXPECT_TRUE(other.Wiped());
}

// The words are looked at before the target has processed anything: it has only stored them.
TEST_P(OwnBatchTest, ARegionThatWasJustClosedGetsNothing) {
  const TestMemory other(kBatchPiece, TestPlace::kDevice);
  const Described closing = b.Register(other, Access::kReadWrite);
  std::vector<Op> ops = Apart(6);
  ops[3].remote = a.Import(Pair::kA, closing);
  ops[3].remote_offset = 0;
  EXPECT_EQ(Outcomes(PostAll(ops)), std::vector<Code>(6, Code::kOk));
  other.Wipe();
  b.transport().Deregister(closing.name.id);
  b.Pump();
  const std::vector<uint64_t> cookies = PostAll(ops);
  ASSERT_TRUE(PumpUntil({&a}, [&] { return a.pending() == 0; }));
  EXPECT_EQ(a.completions[cookies[3]].code, Code::kPermission);
  EXPECT_EQ(a.completions[cookies[5]].code, Code::kOk);
  EXPECT_TRUE(other.Wiped());
  ASSERT_TRUE(pair.Until([&] { return b.deregistered.contains(closing.name.id); }));
}

TEST_P(OwnBatchTest, ADeregisteredRegionWaitsForAllOfTheBatch) {
  fake_cuda_hold(0);
  const uint64_t copies = Copies();
  const std::vector<uint64_t> cookies = PostAll(Apart(100));
  ASSERT_TRUE(pair.Until([&] { return Copies() == copies + 100; }));
  b.transport().Deregister(there.name.id);
  PumpFor({&a, &b}, std::chrono::milliseconds(50));
  EXPECT_FALSE(b.deregistered.contains(there.name.id)) << "a device still works on it";
  EXPECT_EQ(a.pending(), 100U);
  fake_cuda_release(0);
  ASSERT_TRUE(pair.Until([&] { return b.deregistered.contains(there.name.id) && a.pending() == 0; }));
  // What was written had landed in time; what was read may have changed since.
  const Code expected = writes() ? Code::kOk : Code::kPermission;
  EXPECT_EQ(Outcomes(cookies), std::vector<Code>(100, expected));
}

TEST_P(OwnBatchTest, ALinkThatIsClosedCompletesAllOnceTheyAreOver) {
  fake_cuda_hold(0);
  const uint64_t copies = Copies();
  const std::vector<uint64_t> cookies = PostAll(Apart(150));
  ASSERT_TRUE(pair.Until([&] { return Copies() == copies + 150; }));
  a.transport().CloseLink(Pair::kA);
  b.transport().CloseLink(Pair::kB);
  PumpFor({&a, &b}, std::chrono::milliseconds(50));
  EXPECT_EQ(a.pending(), 150U) << "their memory is in use";
  EXPECT_FALSE(b.closed.contains(Pair::kB) && writes());
  fake_cuda_release(0);
  ASSERT_TRUE(pair.Until([&] { return a.closed.contains(Pair::kA) && b.closed.contains(Pair::kB); }));
  EXPECT_EQ(Outcomes(cookies), std::vector<Code>(150, Code::kCancelled));
}

TEST_P(OwnBatchTest, ACallThatFailsFailsAllOfIt) {
  constexpr int kInvalidValue = 1;
  fake_cuda_fail(0, "cuMemcpyBatchAsync", 1, kInvalidValue);
  const std::vector<uint64_t> cookies = PostAll(Apart(10));
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
  for (const uint64_t cookie : cookies) EXPECT_NE(a.completions[cookie].code, Code::kOk);
}

/// What reads have not: streams to wait for, and signals.
class WriteBatchTest : public OwnBatchTest {};
INSTANTIATE_TEST_SUITE_P(, WriteBatchTest, ::testing::Values(OpKind::kWrite));

class Later final : public DeviceEvent {
 public:
  [[nodiscard]] bool Done() const override { return done; }
  bool done = false;
};

TEST_P(WriteBatchTest, OneThatWaitsForAStreamKeepsThoseBehindIt) {
  Later event;
  std::vector<Op> ops = Apart(6);
  ops[3].after = &event;
  const std::vector<uint64_t> cookies = PostAll(ops);
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookies[2]); }));
  PumpFor({&a, &b}, std::chrono::milliseconds(20));
  EXPECT_EQ(a.pending(), 3U);
  event.done = true;
  EXPECT_EQ(Outcomes(cookies), std::vector<Code>(6, Code::kOk));
}

TEST_P(WriteBatchTest, EachSignalComesInItsTurn) {
  target().Wipe();
  std::vector<Op> ops = Apart(100);
  for (size_t i = 0; i < ops.size(); i += 10) {
    ops[i].has_signal = true;
    ops[i].signal = {.grant = {}, .transfer = static_cast<uint32_t>(i), .chunk = 0, .chunks = 1};
  }
  PostAll(ops);
  ASSERT_TRUE(pair.Until([&] { return b.signals.size() == 10; }));
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(b.signals[i].signal.transfer, 10 * i);
  EXPECT_TRUE(Arrived(180 * kBatchPiece));
}

// --- A device with enough to do

enum class Way : uint8_t { kPull, kPush, kRead };

/// Large operations one by one, on a device that is held.
class BusyDeviceTest : public ::testing::TestWithParam<Way> {
 protected:
  static constexpr size_t kLarge = size_t{32} << 20;
  static constexpr size_t kMost = 6;
  static constexpr GrantName kGrant{.slot = 2, .id = 222};

  void SetUp() override {
    ASSERT_TRUE(pair.Connect());
    const bool pulls = GetParam() == Way::kPull;
    local = a.Register(mine, Access::kLocal);
    remote = a.Import(Pair::kA, b.Register(theirs, pulls ? Access::kGranted : Access::kReadWrite));
    ASSERT_TRUE(b.transport().OpenGrant(Pair::kB, kGrant, {}).ok());
    const uint64_t cookie = a.Post(Pair::kA, 0, Of(0, 4096));
    ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
    ASSERT_EQ(a.completions[cookie].code, Code::kOk);
    fake_cuda_hold(-1);
    before = Copies();
  }
  [[nodiscard]] Op Of(size_t offset, size_t length) const {
    return {.kind = GetParam() == Way::kRead ? OpKind::kRead : OpKind::kWrite,
            .local = local.name.id,
            .local_offset = offset,
            .remote = remote,
            .remote_offset = offset,
            .length = length,
            .grant = GetParam() == Way::kPull ? kGrant : GrantName{},
            .signal = {}};
  }
  /// The next one, which follows the one before; returns how many copies have begun then.
  uint64_t PostNext() {
    a.Post(Pair::kA, 0, Of(posted++ * kLarge, kLarge));
    PumpFor({&a, &b}, std::chrono::milliseconds(20));
    return Copies() - before;
  }

  Machine machine = std::make_unique<const FakeMachine>();
  DeviceUse use{machine};
  TestMemory mine{kMost * kLarge, TestPlace::kDevice};
  TestMemory theirs{kMost * kLarge, TestPlace::kDevice};
  Pair pair{Shm()};
  Side& a = pair.a;
  Side& b = pair.b;
  Described local;
  RemoteRegion remote{};
  uint64_t before = 0;
  size_t posted = 0;
};
INSTANTIATE_TEST_SUITE_P(, BusyDeviceTest, ::testing::Values(Way::kPull, Way::kPush, Way::kRead),
                         [](const auto& way) {
                           return way.param == Way::kPull   ? "Pull"
                                  : way.param == Way::kPush ? "Push"
                                                            : "Read";
                         });

TEST_P(BusyDeviceTest, GetsAFullBatchAndOneThatIsNotFullOnceItHasLessToDo) {
  for (uint64_t begun = 1; begun <= 4; ++begun) {
    const uint64_t copies = PostNext();
    ASSERT_EQ(copies, begun) << "up to 128 MiB nothing waits";
  }
  EXPECT_EQ(PostNext(), 4U) << "half a batch waits";
  EXPECT_EQ(PostNext(), 5U) << "two halves are one copy";
  EXPECT_EQ(a.pending(), 6U);
  fake_cuda_release(-1);
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
  for (const auto& [cookie, completion] : a.completions) EXPECT_EQ(completion.code, Code::kOk);
}

TEST_P(BusyDeviceTest, WhatWaitsGoesWhenACopyIsOver) {
  while (posted < 5) PostNext();
  EXPECT_EQ(Copies() - before, 4U);
  fake_cuda_release(-1);
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
  EXPECT_EQ(Copies() - before, 5U);
}

}  // namespace
}  // namespace weightcast::transport
