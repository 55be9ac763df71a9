// Bytes move: sizes, offsets, directions, many at once.
#include <algorithm>
#include <cstring>

#include "contract/suite.h"

namespace weightcast::transport {
namespace {

using TransferTest = PairTest;

constexpr size_t kSizes[] = {0,     1,      7,      8,         63,        64,        4095,           4096,
                             65537, 262144, 262145, 1U << 20U, 3'000'001, 16U << 20, (64U << 20) - 1};

TEST_P(TransferTest, WritesOfAnySizeAndOffset) {
  const size_t room = (64U << 20) + 64;
  const TestMemory source = NewMemory(room);
  const TestMemory target = NewMemory(room);
  source.Fill(1);
  Map(source, target, Access::kReadWrite);
  for (const size_t size : kSizes) {
    for (const size_t skew : {size_t{0}, size_t{13}}) {
      target.Wipe(size + 64);
      const Completion done = Run(WriteOp(skew, 2 * skew, size));
      ASSERT_EQ(done.code, Code::kOk) << size;
      ASSERT_TRUE(SameBytes(source.Read(skew, size), target.Read(2 * skew, size))) << size;
      for (const size_t outside : {2 * skew - 1, 2 * skew + size}) {
        ASSERT_TRUE(outside >= room || target.Read(outside, 1)[0] == TestMemory::kWiped) << size;
      }
    }
  }
}

TEST_P(TransferTest, ReadsOfAnySizeAndOffset) {
  const size_t room = (64U << 20) + 64;
  const TestMemory landing = NewMemory(room);
  const TestMemory target = NewMemory(room);
  target.Fill(2);
  Map(landing, target, Access::kRead);
  for (const size_t size : kSizes) {
    landing.Wipe(size + 64);
    const Completion done = Run(ReadOp(13, 26, size));
    ASSERT_EQ(done.code, Code::kOk) << size;
    ASSERT_TRUE(SameBytes(landing.Read(13, size), target.Read(26, size))) << size;
    ASSERT_EQ(landing.Read(12, 1)[0], TestMemory::kWiped);
    ASSERT_TRUE(13 + size >= room || landing.Read(13 + size, 1)[0] == TestMemory::kWiped);
  }
}

TEST_P(TransferTest, TenThousandSmallWritesEachLand) {
  // Over tcp each is two copies of its own.
  const size_t count = factory().name == "tcp_gpu" ? 1000 : 10'000;
  const TestMemory source = NewMemory(count * 16);
  const TestMemory target = NewMemory(count * 16);
  source.Fill(3);
  Map(source, target, Access::kReadWrite);
  const uint32_t lanes = a.ready[Pair::kA];
  for (size_t i = 0; i < count; ++i) {
    a.Post(Pair::kA, static_cast<uint32_t>(i % lanes), WriteOp(i * 16, (count - 1 - i) * 16, 8 + i % 9));
    if (i % 7 == 0) b.Pump();
  }
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
  ASSERT_EQ(a.completions.size(), count);
  const auto from = source.Read();
  const auto to = target.Read();
  for (size_t i = 0; i < count; ++i) {
    ASSERT_TRUE(SameBytes(from.subspan(i * 16, 8 + i % 9), to.subspan((count - 1 - i) * 16, 8 + i % 9))) << i;
  }
}

TEST_P(TransferTest, BothDirectionsAndBothKindsAtOnce) {
  // The fake device pauses between pieces of 4 KiB.
  const size_t size = GetParam().on_device() ? 2U << 20 : 8U << 20;
  constexpr size_t kPiece = 300'007;
  const TestMemory from_a = NewMemory(size);
  const TestMemory from_b = NewMemory(size);
  const TestMemory at_a = NewMemory(size);
  const TestMemory at_b = NewMemory(size);
  const TestMemory read_by_a = NewMemory(size);
  from_a.Fill(4);
  from_b.Fill(5);
  const Described source_a = a.Register(from_a, Access::kLocal);
  const Described source_b = b.Register(from_b, Access::kRead);
  const Described landing = a.Register(read_by_a, Access::kLocal);
  const RemoteRegion to_a = b.Import(Pair::kB, a.Register(at_a, Access::kReadWrite));
  const RemoteRegion to_b = a.Import(Pair::kA, b.Register(at_b, Access::kReadWrite));
  const RemoteRegion of_b = a.Import(Pair::kA, source_b);
  for (size_t at = 0; at < size; at += kPiece) {
    const size_t length = std::min(kPiece, size - at);
    Op op{.local_offset = at, .remote_offset = at, .length = length, .grant = {}, .signal = {}};
    op.local = source_a.name.id;
    op.remote = to_b;
    a.Post(Pair::kA, 0, op);
    op.local = source_b.name.id;
    op.remote = to_a;
    b.Post(Pair::kB, 0, op);
    op.kind = OpKind::kRead;
    op.local = landing.name.id;
    op.remote = of_b;
    a.Post(Pair::kA, 0, op);
  }
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0 && b.pending() == 0; }));
  for (const auto& [cookie, done] : a.completions) ASSERT_EQ(done.code, Code::kOk);
  for (const auto& [cookie, done] : b.completions) ASSERT_EQ(done.code, Code::kOk);
  EXPECT_TRUE(SameBytes(from_a.Read(), at_b.Read()));
  EXPECT_TRUE(SameBytes(from_b.Read(), at_a.Read()));
  EXPECT_TRUE(SameBytes(from_b.Read(), read_by_a.Read()));
}

TEST_P(TransferTest, PostTakesLessWhenFullAndAllCompleteInTheEnd) {
  constexpr size_t kPiece = 64 << 10;
  const TestMemory source = NewMemory(kPiece);
  const TestMemory target = NewMemory(kPiece);
  source.Fill(6);
  Map(source, target, Access::kReadWrite);
  // Far more than any queue: a transport that takes it all would hoard memory.
  std::vector<Op> ops(200'000, WriteOp(0, 0, 8));
  const size_t taken = a.TryPost(Pair::kA, 0, ops);
  ASSERT_LT(taken, ops.size());
  ASSERT_GT(taken, 0U);
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
  EXPECT_EQ(a.completions.size(), taken);
  EXPECT_EQ(Run(WriteOp(0, 0, kPiece)).code, Code::kOk);
  EXPECT_TRUE(SameBytes(source.Read(), target.Read()));
}

TEST_P(TransferTest, NothingToDoGivesNoEvent) {
  PumpFor({&a, &b}, std::chrono::milliseconds(20));
  EXPECT_EQ(a.Pump(), 0U);
  EXPECT_EQ(b.Pump(), 0U);
}

TEST_P(TransferTest, OneOperationTakesMegabytes) {
  for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kDevice})
    EXPECT_GE(a.transport().LimitsOf(kind).max_length, 64U << 20);
  EXPECT_FALSE(a.transport().Describe(Pair::kA).empty());
}

TEST_P(TransferTest, ProgressTellsThatBytesMoveThoughNothingHasCompleted) {
  if (factory().name.starts_with("verbs_fake"))
    GTEST_SKIP() << "its network moves everything within one call";
  const size_t size = 4U << 20;
  const TestMemory source = NewMemory(size);
  const TestMemory target = NewMemory(size);
  Map(source, target, Access::kReadWrite);
  // One alone may complete whole between two looks: a machine that is busy elsewhere looks late.
  bool moved = false;
  for (int transfer = 0; transfer < 50 && !moved; ++transfer) {
    const uint64_t cookie = a.Post(Pair::kA, 0, WriteOp(0, 0, size));
    ASSERT_TRUE(pair.Until([&] {
      for (Side* side : {&a, &b}) {
        const size_t events = side->Pump();
        moved |= events == 0 && side->last_moved;
      }
      return a.Completed(cookie);
    }));
  }
  EXPECT_TRUE(moved) << "who drives would take it for idle";
  EXPECT_TRUE(pair.Until([&] { return a.Pump() == 0 && !a.last_moved && b.Pump() == 0 && !b.last_moved; }))
      << "and idle once it is";
}

WC_CONTRACT(TransferTest);

}  // namespace
}  // namespace weightcast::transport
