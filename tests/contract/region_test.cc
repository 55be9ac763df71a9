// What a peer may not touch: regions that are unknown, stale, too short, or not open to it.
#include <functional>

#include "contract/suite.h"

namespace weightcast::transport {
namespace {

class RegionTest : public PairTest {
 protected:
  static constexpr size_t kSize = 256 << 10;

  void SetUp() override {
    PairTest::SetUp();
    source.Fill(1);
    target.Wipe();
    local = a.Register(source, Access::kLocal);
  }
  /// Imports and runs one operation; an import that is refused at once counts as the same refusal.
  Code Attempt(const Described& region, const std::function<Op()>& op) {
    auto imported = a.transport().Import(Pair::kA, region.name, region.length, region.key);
    if (!imported.ok()) return imported.status().code();
    remote = *imported;
    return Run(op()).code;
  }
  static bool IsRefusal(Code code) { return code == Code::kPermission || code == Code::kOutOfBounds; }

  TestMemory source = NewMemory(kSize);
  TestMemory target = NewMemory(kSize);
};

TEST_P(RegionTest, UnknownRegionIsRefused) {
  Described region = b.Register(target, Access::kReadWrite);
  region.name.id += 1000;
  EXPECT_TRUE(IsRefusal(Attempt(region, [&] { return WriteOp(0, 0, kSize); })));
  EXPECT_TRUE(IsRefusal(Attempt(region, [&] { return ReadOp(0, 0, kSize); })));
  EXPECT_TRUE(target.Wiped());
}

TEST_P(RegionTest, AnotherPeersRegionIsRefused) {
  Described region = b.Register(target, Access::kReadWrite);
  region.name.owner ^= 1;
  EXPECT_NE(Attempt(region, [&] { return WriteOp(0, 0, 8); }), Code::kOk);
  EXPECT_TRUE(target.Wiped());
}

TEST_P(RegionTest, StaleGenerationIsRefusedAndTheNewOneWorks) {
  const Described old = b.RegisterAs(5, 100, target, Access::kReadWrite);
  EXPECT_EQ(Attempt(old, [&] { return WriteOp(0, 0, 8); }), Code::kOk);
  const RemoteRegion stale = remote;
  b.transport().Deregister(5);
  ASSERT_TRUE(pair.Until([&] { return b.deregistered.contains(5); }));
  target.Wipe();
  // The same id and the same address: only the generation tells them apart.
  const Described fresh = b.RegisterAs(5, 101, target, Access::kReadWrite);
  remote = stale;
  EXPECT_TRUE(IsRefusal(Run(WriteOp(0, 0, kSize)).code));
  EXPECT_TRUE(IsRefusal(Attempt(old, [&] { return WriteOp(0, 0, kSize); })));
  EXPECT_TRUE(target.Wiped());
  EXPECT_EQ(Attempt(fresh, [&] { return WriteOp(0, 0, kSize); }), Code::kOk);
  EXPECT_TRUE(SameBytes(source.Read(), target.Read()));
}

TEST_P(RegionTest, OutOfBoundsIsRefused) {
  const Described region = b.Register(target, Access::kReadWrite);
  const struct {
    uint64_t offset, length;
  } kBad[] = {{kSize, 1},        {kSize - 7, 8},        {1, kSize},
              {~uint64_t{0}, 1}, {~uint64_t{0} - 3, 8}, {1ULL << 40, 8}};
  for (const auto& bad : kBad) {
    EXPECT_EQ(Attempt(region, [&] { return WriteOp(0, bad.offset, bad.length); }), Code::kOutOfBounds);
    EXPECT_EQ(Attempt(region, [&] { return ReadOp(0, bad.offset, bad.length); }), Code::kOutOfBounds);
  }
  EXPECT_TRUE(target.Wiped());
  EXPECT_EQ(Attempt(region, [&] { return WriteOp(0, kSize, 0); }), Code::kOk);
}

TEST_P(RegionTest, AnImportThatClaimsMoreThanThereIsReachesNothingBeyond) {
  const TestMemory whole = NewMemory(4 * kSize);
  whole.Wipe();
  DescribedMemory front = whole.memory();
  front.length = kSize;
  const RegionName name{.owner = b.self(), .id = 77, .generation = 78};
  auto key = b.transport().Register(name, front, Access::kReadWrite);
  ASSERT_TRUE(key.ok());
  const Described lie{name, 4 * kSize, *key};
  EXPECT_TRUE(IsRefusal(Attempt(lie, [&] { return WriteOp(0, 2 * kSize, kSize); })));
  EXPECT_TRUE(whole.Wiped());
}

/// The two sides' regions need not be of one size: what both have crosses, one byte more is refused on the
/// side that lacks it.
TEST_P(RegionTest, RegionsOfDifferentSizes) {
  const TestMemory small = NewMemory(kSize / 2 + 3);
  const size_t both = small.size();
  small.Fill(7);
  const Described whole = b.Register(target, Access::kReadWrite);
  const Described part = b.Register(small, Access::kReadWrite);
  // A large source and a small target.
  EXPECT_EQ(Attempt(part, [&] { return WriteOp(0, 0, both + 1); }), Code::kOutOfBounds);
  EXPECT_EQ(Attempt(part, [&] { return WriteOp(kSize - both, 0, both); }), Code::kOk);
  EXPECT_TRUE(SameBytes(source.ReadLast(both), small.Read()));
  EXPECT_EQ(Attempt(part, [&] { return ReadOp(0, 0, both + 1); }), Code::kOutOfBounds);
  // A small source and a large target.
  const Described mine = a.Register(small, Access::kLocal);
  const auto from_small = [&](uint64_t to, uint64_t length) {
    Op op = WriteOp(0, to, length);
    op.local = mine.name.id;
    return op;
  };
  EXPECT_EQ(Attempt(whole, [&] { return from_small(0, both + 1); }), Code::kOutOfBounds);
  EXPECT_TRUE(target.Wiped());
  EXPECT_EQ(Attempt(whole, [&] { return from_small(kSize - both, both); }), Code::kOk);
  EXPECT_TRUE(SameBytes(target.ReadLast(both), small.Read()));
  EXPECT_EQ(target.Read(kSize - both - 1, 1)[0], TestMemory::kWiped);
}

TEST_P(RegionTest, LocalMistakesCompleteWithTheReason) {
  const Described region = b.Register(target, Access::kReadWrite);
  EXPECT_EQ(Attempt(region, [&] { return WriteOp(1, 0, kSize); }), Code::kOutOfBounds);
  Op op = WriteOp(0, 0, 8);
  op.local = 4711;
  EXPECT_EQ(Run(op).code, Code::kInvalidArgument);
  op = WriteOp(0, 0, 8);
  op.remote = RemoteRegion{4711};
  EXPECT_EQ(Run(op).code, Code::kInvalidArgument);
  EXPECT_TRUE(target.Wiped());
}

TEST_P(RegionTest, AccessIsWhatTheOwnerSaid) {
  const struct {
    Access access;
    Code write, read;
  } kRules[] = {{Access::kLocal, Code::kPermission, Code::kPermission},
                {Access::kGranted, Code::kPermission, Code::kPermission},
                {Access::kRead, Code::kPermission, Code::kOk},
                {Access::kReadWrite, Code::kOk, Code::kOk}};
  for (const auto& rule : kRules) {
    target.Wipe();
    const Described region = b.Register(target, rule.access);
    EXPECT_EQ(Attempt(region, [&] { return WriteOp(0, 0, kSize); }), rule.write);
    EXPECT_EQ(target.Wiped(), rule.write != Code::kOk);
    EXPECT_EQ(Attempt(region, [&] { return ReadOp(0, 0, 64); }), rule.read);
    source.Fill(1);
  }
}

TEST_P(RegionTest, AReadOnlyRegionStaysSoUnderAGrant) {
  const GrantName grant{.slot = 3, .id = 33};
  ASSERT_TRUE(b.transport().OpenGrant(Pair::kB, grant, {}).ok());
  for (const Access access : {Access::kRead, Access::kLocal}) {
    const Described region = b.Register(target, access);
    EXPECT_EQ(Attempt(region, [&] { return WriteOp(0, 0, kSize, grant); }), Code::kPermission);
  }
  EXPECT_TRUE(target.Wiped());
}

/// Keeps the lanes of `from` full of writes over the whole region; returns when a few have landed.
void StartStream(Pair& pair, const std::function<void()>& post) {
  for (int i = 0; i < 8; ++i) post();
  ASSERT_TRUE(pair.Until([&] { return pair.a.completions.size() >= 2; }));
}

TEST_P(RegionTest, DeregisterUnderLoadLetsNothingLandAfterwards) {
  const TestMemory big_source = NewMemory(4U << 20);
  const TestMemory big_target = NewMemory(4U << 20);
  big_source.Fill(1);
  local = a.Register(big_source, Access::kLocal);
  const Described region = b.Register(big_target, Access::kReadWrite);
  const Described other = b.Register(target, Access::kReadWrite);
  remote = a.Import(Pair::kA, region);
  const RemoteRegion other_remote = a.Import(Pair::kA, other);
  const auto post = [&] {
    std::vector<Op> ops{WriteOp(0, 0, 4U << 20)};
    a.TryPost(Pair::kA, 0, ops);
  };
  StartStream(pair, post);
  b.transport().Deregister(region.name.id);
  ASSERT_TRUE(pair.Until([&] {
    post();
    return b.deregistered.contains(region.name.id);
  }));
  big_target.Wipe();
  for (int i = 0; i < 8; ++i) post();
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
  EXPECT_TRUE(big_target.Wiped());
  EXPECT_TRUE(IsRefusal(Run(WriteOp(0, 0, 8)).code));
  // The link and its other regions are as they were.
  remote = other_remote;
  EXPECT_EQ(Run(WriteOp(0, 0, kSize)).code, Code::kOk);
  EXPECT_TRUE(SameBytes(big_source.Read(0, kSize), target.Read()));
}

TEST_P(RegionTest, DeregisterWhileBeingReadEnds) {
  const TestMemory big_source = NewMemory(4U << 20);
  const TestMemory big_target = NewMemory(4U << 20);
  local = a.Register(big_source, Access::kLocal);
  const Described region = b.Register(big_target, Access::kRead);
  remote = a.Import(Pair::kA, region);
  for (int i = 0; i < 8; ++i) a.Post(Pair::kA, 0, ReadOp(0, 0, 4U << 20));
  ASSERT_TRUE(pair.Until([&] { return !a.completions.empty(); }));
  b.transport().Deregister(region.name.id);
  ASSERT_TRUE(pair.Until([&] { return b.deregistered.contains(region.name.id) && a.pending() == 0; }));
  EXPECT_TRUE(IsRefusal(Run(ReadOp(0, 0, 8)).code));
}

TEST_P(RegionTest, MemoryFreedAndMadeAnewAtTheSameAddressIsNew) {
  RemoteRegion stale{};
  for (uint32_t round = 0; round < 10; ++round) {
    const TestMemory memory = NewMemory(kSize);  // Most often at the address of the round before.
    memory.Wipe();
    const Described region = b.RegisterAs(9, 1000 + round, memory, Access::kReadWrite);
    if (round > 0) {
      remote = stale;
      EXPECT_TRUE(IsRefusal(Run(WriteOp(0, 0, kSize)).code));
      EXPECT_TRUE(memory.Wiped());
      a.transport().Release(Pair::kA, stale);
    }
    EXPECT_EQ(Attempt(region, [&] { return WriteOp(0, 0, kSize); }), Code::kOk);
    EXPECT_TRUE(SameBytes(source.Read(), memory.Read()));
    stale = remote;
    b.transport().Deregister(9);
    ASSERT_TRUE(pair.Until([&] { return b.deregistered.contains(9); }));
  }
}

TEST_P(RegionTest, AnIdInUseIsRefused) {
  const Described region = b.Register(target, Access::kReadWrite);
  RegionName again = region.name;
  again.generation += 1;
  const auto second = b.transport().Register(again, target.memory(), Access::kReadWrite);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kInvalidArgument);
}

WC_CONTRACT(RegionTest);

}  // namespace
}  // namespace weightcast::transport
