// Device memory that no device of the other end reads, and operations with a device at one end only: the
// bytes go through the staging ring. What holds for all memory is in the other suites, which run over it too.
#include <gmock/gmock.h>

#include <algorithm>

#include "contract/devices.h"
#include "contract/names.h"
#include "contract/suite.h"
#include "fake_cuda/fake_cuda.h"
#include "trace/metrics.h"

namespace weightcast::transport {
namespace {

constexpr size_t kMiB = 1U << 20;
constexpr size_t kStagedSize = 4 * kMiB;

/// Where the memory of a lies, and that of b.
struct Places {
  TestPlace here;
  TestPlace there;
};

Subject StagedOverShm() {
  return {.factory = {"shm_gpu_ring", &CreateShmTransport}, .place = TestPlace::kSecluded, .other_place = {}};
}

/// The rings are of 1 MiB: what crosses here goes round them several times.
Settings SmallRings() {
  Settings settings = TestSettings();
  settings.pinned = 4 * kMiB;
  return settings;
}

uint64_t CopiesBegun() { return trace::CounterNamed("gpu.copies").value(); }

class StagedTest : public ::testing::TestWithParam<Places> {
 protected:
  StagedTest() { EXPECT_TRUE(pair.Connect()); }

  void Map(const TestMemory& source, const TestMemory& target, Access access) {
    local = a.Register(source, Access::kLocal);
    region = b.Register(target, access);
    remote = a.Import(Pair::kA, region);
  }
  void Map() {
    mine.Fill(1);
    theirs.Wipe();
    Map(mine, theirs, Access::kGranted);
    ASSERT_TRUE(b.transport().OpenGrant(Pair::kB, kGrant, {}).ok());
  }
  [[nodiscard]] Op Write(uint64_t from, uint64_t to, uint64_t length, GrantName grant = {}) const {
    return {.kind = OpKind::kWrite,
            .local = local.name.id,
            .local_offset = from,
            .remote = remote,
            .remote_offset = to,
            .length = length,
            .grant = grant,
            .signal = {}};
  }
  [[nodiscard]] Op Signalled(uint64_t from, uint64_t to, uint64_t length, uint32_t chunk = 0) const {
    Op op = Write(from, to, length, kGrant);
    op.has_signal = true;
    op.signal = {.grant = kGrant, .transfer = 1, .chunk = chunk, .chunks = 1U << 30};
    return op;
  }
  Code Run(const Op& op) {
    const uint64_t cookie = a.Post(Pair::kA, 0, op);
    EXPECT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
    EXPECT_FALSE(a.down.contains(Pair::kA)) << a.down[Pair::kA].message();
    return a.completions[cookie].code;
  }
  /// One write and its signal, so that rings and queues are made.
  void WriteOnce() {
    ASSERT_EQ(Run(Signalled(0, 0, kStagedSize)), Code::kOk);
    ASSERT_EQ(b.signals.size(), 1U);
    b.Forget();
  }
  [[nodiscard]] static int GpuOf(const TestMemory& memory) { return memory.memory().ordinal; }
  /// Another write, in the middle of which `gpu` is held: its copies have begun, and do not end.
  uint64_t WriteHeld(int gpu) {
    fake_cuda_hold(gpu);
    const uint64_t before = CopiesBegun();
    const uint64_t cookie = a.Post(Pair::kA, 0, Signalled(0, 0, kStagedSize));
    // The ring has room for four pieces: with two devices the fifth copy is the target's.
    const bool second = IsDevice(GetParam().here) && IsDevice(GetParam().there) && gpu == GpuOf(theirs);
    EXPECT_TRUE(pair.Until([&] { return CopiesBegun() > before + (second ? 4 : 0); }));
    return cookie;
  }
  [[nodiscard]] bool held_target() const { return IsDevice(GetParam().there); }
  [[nodiscard]] int HeldGpu() const { return held_target() ? GpuOf(theirs) : GpuOf(mine); }

  Machine machine = MachineOf(StagedOverShm());
  DeviceUse use{machine};
  TestMemory mine{kStagedSize, GetParam().here};
  TestMemory theirs{kStagedSize, GetParam().there};
  Pair pair{StagedOverShm().factory, SmallRings()};
  Side& a = pair.a;
  Side& b = pair.b;
  Described local;
  Described region;
  RemoteRegion remote{};
};

constexpr size_t kStagedSizes[] = {1, 7, 4095, 65537, 262144, 262145, kMiB + 1, kStagedSize - 64};

TEST_P(StagedTest, WritesOfAnySizeAndOffset) {
  mine.Fill(1);
  Map(mine, theirs, Access::kReadWrite);
  const RemoteRegion open = remote;
  remote = a.Import(Pair::kA, b.Register(theirs, Access::kGranted));
  const RemoteRegion granted = remote;
  ASSERT_TRUE(b.transport().OpenGrant(Pair::kB, kGrant, {}).ok());
  const uint64_t staged = BytesStaged();
  uint64_t written = 0;
  for (const bool by_grant : {false, true}) {
    remote = by_grant ? granted : open;
    for (const size_t size : kStagedSizes) {
      for (const size_t skew : {size_t{0}, size_t{13}}) {
        theirs.Wipe();
        ASSERT_EQ(Run(Write(skew, 2 * skew, size, by_grant ? kGrant : GrantName{})), Code::kOk) << size;
        ASSERT_TRUE(SameBytes(mine.Read(skew, size), theirs.Read(2 * skew, size))) << size;
        ASSERT_EQ(theirs.Read(2 * skew + size, 1)[0], TestMemory::kWiped) << size;
        ASSERT_TRUE(skew == 0 || theirs.Read(2 * skew - 1, 1)[0] == TestMemory::kWiped) << size;
        written += size;
      }
    }
  }
  EXPECT_EQ(BytesStaged(), staged + written);
}

TEST_P(StagedTest, ReadsOfAnySizeAndOffset) {
  theirs.Fill(2);
  Map(mine, theirs, Access::kRead);
  for (const size_t size : kStagedSizes) {
    mine.Wipe();
    Op op = Write(13, 26, size);
    op.kind = OpKind::kRead;
    ASSERT_EQ(Run(op), Code::kOk) << size;
    ASSERT_TRUE(SameBytes(mine.Read(13, size), theirs.Read(26, size))) << size;
    ASSERT_EQ(mine.Read(12, 1)[0], TestMemory::kWiped);
    ASSERT_EQ(mine.Read(13 + size, 1)[0], TestMemory::kWiped);
  }
}

TEST_P(StagedTest, ManyAtOnceLandAndTheirSignalsComeInOrder) {
  Map();
  constexpr uint32_t kCount = 700;
  const auto at = [](uint32_t i) { return uint64_t{i} * 5000; };
  for (uint32_t i = 0; i < kCount; ++i) {
    a.Post(Pair::kA, 0, Signalled(at(i), at(kCount - 1 - i), 1 + i * 7 % 5000, i));
    if (i % 50 == 0) b.Pump();
  }
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0 && b.signals.size() == kCount; }));
  for (const auto& [cookie, done] : a.completions) ASSERT_EQ(done.code, Code::kOk);
  for (uint32_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(b.signals[i].signal.chunk, i);
    const size_t length = 1 + i * 7 % 5000;
    ASSERT_TRUE(SameBytes(mine.Read(at(i), length), theirs.Read(at(kCount - 1 - i), length))) << i;
  }
}

// Copies of one batch and of two streams run in any order: those to the same bytes wait for each other.
TEST_P(StagedTest, TheLastOfSeveralWritesToOnePlaceStays) {
  Map();
  constexpr size_t kPiece = 60'000;
  constexpr size_t kRounds = 60;
  for (size_t i = 0; i < kRounds; ++i) a.Post(Pair::kA, 0, Write(i * 1000, 17, kPiece, kGrant));
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
  EXPECT_TRUE(SameBytes(mine.Read((kRounds - 1) * 1000, kPiece), theirs.Read(17, kPiece)));
}

TEST_P(StagedTest, OperationsOfSeveralPathsKeepTheOrderOfPosting) {
  const TestMemory host_here(kStagedSize, TestPlace::kShared);
  const TestMemory host_there(kStagedSize, TestPlace::kShared);
  const TestMemory back(kStagedSize, GetParam().here);
  mine.Fill(1);
  host_here.Fill(2);
  Map(mine, theirs, Access::kReadWrite);
  const Described host_local = a.Register(host_here, Access::kLocal);
  const Described landing = a.Register(back, Access::kLocal);
  const RemoteRegion host_remote = a.Import(Pair::kA, b.Register(host_there, Access::kReadWrite));
  for (int round = 0; round < 4; ++round) {
    const size_t size = kStagedSize / 2 + static_cast<size_t>(round);
    a.Post(Pair::kA, 0, Write(0, static_cast<uint64_t>(round), size));
    Op host = Write(0, 0, kMiB);
    host.local = host_local.name.id;
    host.remote = host_remote;
    a.Post(Pair::kA, 0, host);
    Op read = Write(0, static_cast<uint64_t>(round), size);
    read.kind = OpKind::kRead;
    read.local = landing.name.id;
    a.Post(Pair::kA, 0, read);
  }
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
  for (const auto& [cookie, done] : a.completions) ASSERT_EQ(done.code, Code::kOk);
  EXPECT_TRUE(SameBytes(back.Read(0, kStagedSize / 2), mine.Read(0, kStagedSize / 2)))
      << "it was read after it was written";
  EXPECT_TRUE(SameBytes(host_here.Read(0, kMiB), host_there.Read(0, kMiB)));
}

TEST_P(StagedTest, ARevokeInTheMiddleWaitsForOwnCopiesAlone) {
  Map();
  WriteOnce();
  const uint64_t cookie = WriteHeld(HeldGpu());
  b.transport().Revoke(Pair::kB, kGrant);
  if (held_target()) {
    PumpFor({&a, &b}, std::chrono::milliseconds(50));
    EXPECT_TRUE(b.revoked.empty()) << "its copy is still under way";
    fake_cuda_release(HeldGpu());
  }
  ASSERT_TRUE(PumpUntil({&b}, [&] { return !b.revoked.empty(); })) << "it waits for the writer";
  theirs.Wipe();
  fake_cuda_release(HeldGpu());
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kFenced);
  EXPECT_EQ(Run(Signalled(0, 0, kStagedSize)), Code::kFenced);
  EXPECT_TRUE(theirs.Wiped());
  EXPECT_TRUE(b.signals.empty());
}

TEST_P(StagedTest, ATargetThatIsDeregisteredInTheMiddleWaitsForOwnCopies) {
  Map();
  WriteOnce();
  const uint64_t cookie = WriteHeld(HeldGpu());
  b.transport().Deregister(region.name.id);
  if (held_target()) {
    PumpFor({&a, &b}, std::chrono::milliseconds(50));
    EXPECT_FALSE(b.deregistered.contains(region.name.id));
    fake_cuda_release(HeldGpu());
  }
  ASSERT_TRUE(PumpUntil({&b}, [&] { return b.deregistered.contains(region.name.id); }));
  theirs.Wipe();
  fake_cuda_release(HeldGpu());
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kPermission);
  EXPECT_TRUE(theirs.Wiped());
  EXPECT_TRUE(b.signals.empty());
}

TEST_P(StagedTest, ASourceThatIsDeregisteredInTheMiddleEndsItsWrite) {
  Map();
  WriteOnce();
  const int gpu = IsDevice(GetParam().here) ? GpuOf(mine) : GpuOf(theirs);
  const uint64_t cookie = WriteHeld(gpu);
  a.transport().Deregister(local.name.id);
  if (IsDevice(GetParam().here)) {
    PumpFor({&a, &b}, std::chrono::milliseconds(50));
    EXPECT_FALSE(a.deregistered.contains(local.name.id)) << "it is being copied";
  }
  fake_cuda_release(gpu);
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie) && a.deregistered.contains(local.name.id); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kInvalidArgument);
  EXPECT_TRUE(b.signals.empty());
  // What follows is as if nothing had been.
  local = a.Register(mine, Access::kLocal);
  EXPECT_EQ(Run(Signalled(0, 0, kStagedSize)), Code::kOk);
  EXPECT_EQ(b.signals.size(), 1U);
  EXPECT_TRUE(SameBytes(mine.Read(), theirs.Read()));
}

TEST_P(StagedTest, ARegionThatIsDeregisteredWhileItIsReadEndsTheRead) {
  theirs.Fill(2);
  Map(mine, theirs, Access::kRead);
  Op op = Write(0, 0, kStagedSize);
  op.kind = OpKind::kRead;
  ASSERT_EQ(Run(op), Code::kOk);
  const int gpu = IsDevice(GetParam().there) ? GpuOf(theirs) : GpuOf(mine);
  fake_cuda_hold(gpu);
  const uint64_t before = CopiesBegun();
  const uint64_t cookie = a.Post(Pair::kA, 0, op);
  ASSERT_TRUE(pair.Until([&] { return CopiesBegun() > before; }));
  b.transport().Deregister(region.name.id);
  if (IsDevice(GetParam().there)) {
    PumpFor({&a, &b}, std::chrono::milliseconds(50));
    EXPECT_FALSE(b.deregistered.contains(region.name.id)) << "it is being copied";
  }
  fake_cuda_release(gpu);
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie) && b.deregistered.contains(region.name.id); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kPermission);
}

TEST_P(StagedTest, ALinkThatIsClosedInTheMiddleEndsEverything) {
  Map();
  WriteOnce();
  const uint64_t cookie = WriteHeld(HeldGpu());
  const int source = IsDevice(GetParam().here) ? GpuOf(mine) : -2;
  a.transport().CloseLink(Pair::kA);
  if (source == HeldGpu()) {
    PumpFor({&a, &b}, std::chrono::milliseconds(20));
    EXPECT_FALSE(a.Completed(cookie)) << "an operation ends after the last copy of its bytes";
  } else {
    ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); })) << "whatever the target's device does";
  }
  fake_cuda_release(HeldGpu());
  ASSERT_TRUE(pair.Until([&] { return a.closed.contains(Pair::kA) && b.down.contains(Pair::kB); }));
  EXPECT_EQ(a.pending(), 0U);
  EXPECT_NE(a.completions[cookie].code, Code::kOk);
  EXPECT_TRUE(b.signals.empty());
  b.transport().CloseLink(Pair::kB);
  ASSERT_TRUE(pair.Until([&] { return b.closed.contains(Pair::kB); }));
}

TEST_P(StagedTest, ALostContextEndsTheLink) {
  Map();
  WriteOnce();
  const uint64_t cookie = WriteHeld(HeldGpu());
  use.devices->ExpectLeftovers();
  fake_cuda_lose(0, HeldGpu(), kUncorrectable, 0);
  fake_cuda_release(HeldGpu());
  Side& loses = held_target() ? b : a;
  const LinkId link = held_target() ? Pair::kB : Pair::kA;
  ASSERT_TRUE(pair.Until([&] { return loses.down.contains(link) && a.Completed(cookie); }));
  EXPECT_EQ(loses.down[link].code(), Code::kInternal);
  EXPECT_THAT(loses.down[link].message(), ::testing::HasSubstr("ECC"));
  EXPECT_NE(a.completions[cookie].code, Code::kOk);
  b.transport().Revoke(Pair::kB, kGrant);
  b.transport().CloseLink(Pair::kB);
  a.transport().CloseLink(Pair::kA);
  ASSERT_TRUE(pair.Until(
      [&] { return b.closed.contains(Pair::kB) && a.closed.contains(Pair::kA) && !b.revoked.empty(); }));
  EXPECT_TRUE(b.signals.empty());
}

TEST_P(StagedTest, ADriverCallThatBlocksHoldsUpNobodyElse) {
  Map();
  WriteOnce();
  const TestMemory host_source(4096, /*shared=*/true);
  const TestMemory host_target(4096, /*shared=*/true);
  const Described host_local = b.Register(host_source, Access::kLocal);
  const Op host{.kind = OpKind::kWrite,
                .local = host_local.name.id,
                .remote = b.Import(Pair::kB, a.Register(host_target, Access::kReadWrite)),
                .length = 4096,
                .grant = {},
                .signal = {}};
  fake_cuda_block(0, "cuMemcpyAsync", 1, 60'000);
  const uint64_t cookie = a.Post(Pair::kA, 0, Signalled(0, 0, kStagedSize));
  ASSERT_TRUE(pair.Until([&] { return fake_cuda_blocked(0) > 0; }));
  for (int i = 0; i < 100; ++i) {
    const uint64_t beside = b.Post(Pair::kB, 0, host);
    ASSERT_TRUE(pair.Until([&] { return b.Completed(beside); }));
    EXPECT_EQ(b.completions[beside].code, Code::kOk);
  }
  EXPECT_FALSE(a.Completed(cookie)) << "the driver's call did not block";
  fake_cuda_unblock(0);
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kOk);
  EXPECT_TRUE(SameBytes(mine.Read(), theirs.Read()));
}

TEST_P(StagedTest, WhereNothingCanBePinnedOperationsSaySoAndTheLinkGoesOn) {
  Map();
  fake_cuda_fail(0, "cuMemHostRegister", 1, kOutOfMemory);
  EXPECT_EQ(Run(Signalled(0, 0, kStagedSize)), Code::kExhausted);
  EXPECT_EQ(Run(Signalled(0, 0, 1)), Code::kExhausted) << "for good";
  EXPECT_TRUE(b.signals.empty());
  const TestMemory host_source(4096, /*shared=*/true);
  const TestMemory host_target(4096, /*shared=*/true);
  Map(host_source, host_target, Access::kReadWrite);
  EXPECT_EQ(Run(Write(0, 0, host_source.size())), Code::kOk);
}

INSTANTIATE_TEST_SUITE_P(All, StagedTest,
                         ::testing::Values(Places{TestPlace::kPrivate, TestPlace::kSecluded},
                                           Places{TestPlace::kSecluded, TestPlace::kPrivate},
                                           Places{TestPlace::kSecluded, TestPlace::kSecluded}),
                         [](const auto& tested) {
                           const auto name = [](TestPlace place) {
                             return IsDevice(place) ? "Device" : "Host";
                           };
                           return std::string(name(tested.param.here)) + "To" + name(tested.param.there);
                         });

// A ring for each direction; the setting pinned has room for one.
TEST(StagedBudgetTest, WhatTheSettingPinnedDoesNotAllowIsRefused) {
  const Machine machine = MachineOf(StagedOverShm());
  const DeviceUse use(machine);
  Settings settings = TestSettings();
  settings.pinned = kMiB;
  Pair pair(StagedOverShm().factory, settings);
  ASSERT_TRUE(pair.Connect());
  const TestMemory at_a(4096, TestPlace::kSecluded);
  const TestMemory at_b(4096, TestPlace::kPrivate);
  const Described of_a = pair.a.Register(at_a, Access::kReadWrite);
  const Described of_b = pair.b.Register(at_b, Access::kReadWrite);
  const auto write = [](Side& side, LinkId link, const Described& local, RemoteRegion remote) {
    return side.Post(link, 0,
                     {.local = local.name.id, .remote = remote, .length = 4096, .grant{}, .signal{}});
  };
  const uint64_t out = write(pair.a, Pair::kA, of_a, pair.a.Import(Pair::kA, of_b));
  ASSERT_TRUE(pair.Until([&] { return pair.a.Completed(out); }));
  EXPECT_EQ(pair.a.completions[out].code, Code::kOk);
  const uint64_t back = write(pair.b, Pair::kB, of_b, pair.b.Import(Pair::kB, of_a));
  ASSERT_TRUE(pair.Until([&] { return pair.b.Completed(back); }));
  EXPECT_EQ(pair.b.completions[back].code, Code::kExhausted);
}

}  // namespace
}  // namespace weightcast::transport
