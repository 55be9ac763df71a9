#include <atomic>
#include <future>

#include "unit/transport/verbs_world.h"

// Regions that are larger than a device registers at once: several keys, and work requests cut between them.

namespace weightcast::transport::verbs {
namespace {

class VerbsPartsTest : public VerbsPairTest {
 protected:
  static constexpr size_t kBytes = (1 << 20) + 4096 + 24;

  /// Of two devices the second takes no more than `most` bytes at once.
  static fake::HostConfig Takes(uint64_t most) {
    fake::HostConfig config = Nics(2);
    config.devices[1].max_mr_size = most;
    return config;
  }
  [[nodiscard]] int RegionsOf(const Node& node) const { return world.fabric.CountersOf(*node.host, 0).mrs; }
};

TEST_F(VerbsPartsTest, OperationsCrossTheCutsOfBothSides) {
  constexpr struct {
    uint64_t a;
    uint64_t b;
  } kCases[] = {{UINT64_MAX, 64 << 10}, {64 << 10, UINT64_MAX}, {96 << 10, 64 << 10}, {100001, 70001}};
  for (const auto& most : kCases) {
    SCOPED_TRACE(most.a);
    Join(Takes(most.a), Takes(most.b), World::OwnSettings(), kBytes);
    for (uint32_t lane = 0; lane < 4; ++lane) ExpectWorks(lane);
    // From an odd place, a signal behind it.
    a.memory->Fill(77);
    b.memory->Wipe();
    const Signal signal{.grant = {}, .transfer = 5, .chunk = 0, .chunks = 1, .checksum = 0};
    EXPECT_EQ(Run(1, SignalledWriteOf(a, remote, 65535, kBytes - 65535, signal)).code, Code::kOk);
    ASSERT_TRUE(Until([&] { return b.side->signals.size() == 1; }));
    EXPECT_TRUE(SameBytes(a.memory->bytes().subspan(65535), b.memory->bytes().subspan(65535)));
    // And back, as a read.
    b.memory->Fill(78);
    Op read = WriteOf(a, remote, 1, kBytes - 1);
    read.kind = OpKind::kRead;
    EXPECT_EQ(Run(3, read).code, Code::kOk);
    EXPECT_TRUE(SameBytes(a.memory->bytes().subspan(1), b.memory->bytes().subspan(1)));
    // Nothing, behind the last byte.
    EXPECT_EQ(Run(1, WriteOf(a, remote, kBytes, 0)).code, Code::kOk);
    EXPECT_EQ(Run(1, WriteOf(a, remote, kBytes, 1)).code, Code::kOutOfBounds);
    EXPECT_TRUE(a.side->lanes_down.empty());
  }
}

TEST_F(VerbsPartsTest, AllPartsAreGivenBack) {
  Join(Takes(64 << 10), Takes(64 << 10));
  const int before = RegionsOf(b);
  const TestMemory memory(kBytes, false);
  const Described region = b.side->Register(memory, Access::kReadWrite);
  EXPECT_EQ(RegionsOf(b), before + 17);
  b.side->transport().Deregister(region.name.id);
  ASSERT_TRUE(Until([&] { return b.side->deregistered.contains(region.name.id); }));
  EXPECT_EQ(RegionsOf(b), before);
  // One that fails takes the others with it.
  world.fabric.Fail(*b.host, fake::Call::kRegMr, 20, ENOMEM);
  EXPECT_FALSE(
      b.side->transport()
          .Register({.owner = b.side->self(), .id = 60, .generation = 1}, memory.memory(), Access::kReadWrite)
          .ok());
  EXPECT_EQ(RegionsOf(b), before);
}

/// An import that is shorter than the region, and ends in its first part.
TEST_F(VerbsPartsTest, AShorterImportHasTheRegionsCuts) {
  Join(Takes(64 << 10), Takes(64 << 10), World::OwnSettings(), kBytes);
  Described shorter = b.region;
  shorter.length = 100;
  const RemoteRegion first = a.side->Import(Pair::kA, shorter);
  a.memory->Fill(3);
  b.memory->Wipe();
  EXPECT_EQ(Run(1, WriteOf(a, first, 0, 100)).code, Code::kOk);
  EXPECT_TRUE(SameBytes(a.memory->bytes().first(100), b.memory->bytes().first(100)));
  EXPECT_EQ(Run(1, WriteOf(a, first, 0, 101)).code, Code::kOutOfBounds);
}

/// Every page of it is unpinned: seconds, in which heartbeats must go out.
TEST_F(VerbsPartsTest, ALargeRegionIsDeregisteredWhileOthersGoOn) {
  Join();
  const TestMemory memory(65 << 20, false);
  const Described region = b.side->Register(memory, Access::kReadWrite);
  std::promise<void> end;
  // Shared: what is left is deregistered after this test's own variables are gone.
  const auto began = std::make_shared<std::atomic<bool>>(false);
  world.fabric.Before(*b.host, fake::Call::kDeregMr, [began, ended = end.get_future().share()] {
    *began = true;
    ended.wait_for(1s);
  });
  b.side->transport().Deregister(region.name.id);
  ASSERT_TRUE(Until([&] { return began->load(); }));
  ExpectWorks();
  EXPECT_FALSE(b.side->deregistered.contains(region.name.id));
  end.set_value();
  EXPECT_TRUE(Until([&] { return b.side->deregistered.contains(region.name.id); }));
}

/// A device that keeps it is not used any more; then nothing reaches the region.
TEST_F(VerbsPartsTest, ALargeRegionThatADeviceKeepsEndsWithItsQueuePairs) {
  Join(Nics(2));
  const TestMemory memory(65 << 20, false);
  const Described region = b.side->Register(memory, Access::kReadWrite);
  testing::internal::CaptureStderr();
  world.fabric.Fail(*b.host, fake::Call::kDeregMr, 2, EBUSY);
  b.side->transport().Deregister(region.name.id);
  EXPECT_TRUE(Until([&] { return b.side->deregistered.contains(region.name.id); }));
  EXPECT_EQ(world.fabric.CountersOf(*b.host, 1).qps, 0);
  EXPECT_GT(world.fabric.CountersOf(*b.host, 0).qps, 0);
  testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace weightcast::transport::verbs
