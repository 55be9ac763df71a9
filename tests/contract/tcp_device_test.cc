// Device memory over tcp, staged through pinned blocks: what is special about it. What holds for all memory
// is in the other suites, which run over it too.
#include <gmock/gmock.h>

#include "contract/devices.h"
#include "contract/names.h"
#include "contract/suite.h"
#include "fake_cuda/fake_cuda.h"
#include "trace/metrics.h"

namespace weightcast::transport {
namespace {

constexpr size_t kTcpDeviceSize = 2U << 20;
constexpr int kSource = 0;  ///< The device that a's memory lies on.
constexpr int kTarget = 1;  ///< The one of b's.

Subject StagedOverTcp() {
  return {.factory = {"tcp_gpu", &CreateTcpTransport}, .place = TestPlace::kDevice, .other_place = {}};
}

Settings Pinned(uint64_t bytes) {
  Settings settings = TestSettings();
  settings.pinned = bytes;
  settings.lanes = 2;
  return settings;
}

/// a's device 0 holds the source, b's device 1 the target.
class TcpDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(pair.Connect());
    source.Fill(1);
    target.Wipe();
    local = a.Register(source, Access::kLocal);
    there = b.Register(target, Access::kGranted);
    remote = a.Import(Pair::kA, there);
    ASSERT_TRUE(b.transport().OpenGrant(Pair::kB, kGrant, {}).ok());
  }
  [[nodiscard]] Op Write() const {
    return {.kind = OpKind::kWrite,
            .has_signal = true,
            .local = local.name.id,
            .remote = remote,
            .length = kTcpDeviceSize,
            .grant = kGrant,
            .signal = {.grant = kGrant, .transfer = 1, .chunk = 0, .chunks = 1}};
  }
  void WriteOnce() {
    const uint64_t cookie = a.Post(Pair::kA, 0, Write());
    ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
    ASSERT_EQ(a.completions[cookie].code, Code::kOk);
    ASSERT_EQ(b.signals.size(), 1U);
    ASSERT_TRUE(SameBytes(source.Read(), target.Read()));
    b.Forget();
  }
  /// Another; returns its cookie when `copies` more copies have begun while that device holds its own.
  uint64_t WriteHeld(int device, uint64_t copies) {
    fake_cuda_hold(device);
    const uint64_t begun = Begun();
    const uint64_t cookie = a.Post(Pair::kA, 0, Write());
    EXPECT_TRUE(pair.Until([&] { return Begun() >= begun + copies; }));
    return cookie;
  }
  static uint64_t Begun() { return trace::CounterNamed("gpu.copies").value(); }

  Machine machine = MachineOf(StagedOverTcp());
  DeviceUse use{machine};
  TestMemory source{kTcpDeviceSize, TestPlace::kDevice};
  TestMemory target{kTcpDeviceSize, TestPlace::kDevice};
  Pair pair{StagedOverTcp().factory};
  Side& a = pair.a;
  Side& b = pair.b;
  Described local;
  Described there;
  RemoteRegion remote{};
};

// Two copies at the source's device, and then the first of the target's, which is held.
constexpr uint64_t kUntilTarget = 3;

TEST_F(TcpDeviceTest, ATransportWhoseGpusAreOffRefusesThem) {
  Settings off = TestSettings();
  off.gpu = "off";
  Side side(StagedOverTcp().factory, off);
  const auto key = side.transport().Register({side.self(), 1, 1}, source.memory(), Access::kLocal);
  ASSERT_FALSE(key.ok());
  EXPECT_EQ(key.status().code(), Code::kUnavailable);
  EXPECT_THAT(key.status().message(), ::testing::HasSubstr("setting gpu"));
}

TEST_F(TcpDeviceTest, ARevokeWaitsForTheOwnCopyAndItsSignalDoesNotCount) {
  WriteOnce();
  const uint64_t cookie = WriteHeld(kTarget, kUntilTarget);
  b.transport().Revoke(Pair::kB, kGrant);
  PumpFor({&a, &b}, std::chrono::milliseconds(50));
  EXPECT_TRUE(b.revoked.empty()) << "its copy is still under way";
  EXPECT_FALSE(a.Completed(cookie));
  fake_cuda_release(kTarget);
  ASSERT_TRUE(pair.Until([&] { return !b.revoked.empty() && a.Completed(cookie); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kFenced);
  EXPECT_TRUE(b.signals.empty());
  target.Wipe();
  a.Post(Pair::kA, 0, Write());
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
  EXPECT_TRUE(target.Wiped());
}

TEST_F(TcpDeviceTest, ADeregisteredTargetWaitsForTheOwnCopy) {
  WriteOnce();
  const uint64_t cookie = WriteHeld(kTarget, kUntilTarget);
  b.transport().Deregister(there.name.id);
  PumpFor({&a, &b}, std::chrono::milliseconds(50));
  EXPECT_FALSE(b.deregistered.contains(there.name.id));
  fake_cuda_release(kTarget);
  ASSERT_TRUE(pair.Until([&] { return b.deregistered.contains(there.name.id) && a.Completed(cookie); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kPermission);
  EXPECT_TRUE(b.signals.empty());
}

// The rest of its payload is received into nothing: it must not take a block for a region that is gone, which
// would end a second time.
TEST_F(TcpDeviceTest, ATargetThatIsDeregisteredWhileItsPayloadFindsNoBlockEndsOnce) {
  WriteOnce();
  fake_cuda_hold(kTarget);
  for (int i = 0; i < 8; ++i) a.Post(Pair::kA, 0, Write());
  PumpFor({&a, &b}, std::chrono::milliseconds(100));  // Until all blocks of the lane are in use.
  b.transport().Deregister(there.name.id);
  b.Pump();
  EXPECT_FALSE(b.deregistered.contains(there.name.id));
  fake_cuda_release(kTarget);
  ASSERT_TRUE(pair.Until([&] { return b.deregistered.contains(there.name.id) && a.pending() == 0; }));
  PumpFor({&a, &b}, std::chrono::milliseconds(20));  // A second Deregistered would fail here.
  EXPECT_TRUE(b.signals.empty());
}

TEST_F(TcpDeviceTest, ADeregisteredSourceIsReadUntilItsWriteHasEnded) {
  WriteOnce();
  const uint64_t cookie = WriteHeld(kSource, 1);
  a.transport().Deregister(local.name.id);
  PumpFor({&a, &b}, std::chrono::milliseconds(50));
  EXPECT_FALSE(a.deregistered.contains(local.name.id));
  fake_cuda_release(kSource);
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie) && a.deregistered.contains(local.name.id); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kOk);
}

TEST_F(TcpDeviceTest, ARegionThatAPeerReadsWaitsForTheOwnCopy) {
  const TestMemory open(kTcpDeviceSize, TestPlace::kDevice);  // On a's device.
  const TestMemory landing(kTcpDeviceSize, TestPlace::kDevice);
  const Described region = a.Register(open, Access::kRead);
  const Op read{.kind = OpKind::kRead,
                .local = b.Register(landing, Access::kLocal).name.id,
                .remote = b.Import(Pair::kB, region),
                .length = kTcpDeviceSize,
                .grant = {},
                .signal = {}};
  fake_cuda_hold(kSource);
  const uint64_t begun = Begun();
  const uint64_t cookie = b.Post(Pair::kB, 0, read);
  ASSERT_TRUE(pair.Until([&] { return Begun() > begun; }));
  a.transport().Deregister(region.name.id);
  PumpFor({&a, &b}, std::chrono::milliseconds(50));
  EXPECT_FALSE(a.deregistered.contains(region.name.id));
  fake_cuda_release(kSource);
  ASSERT_TRUE(pair.Until([&] { return b.Completed(cookie) && a.deregistered.contains(region.name.id); }));
  EXPECT_EQ(b.completions[cookie].code, Code::kPermission);
}

TEST_F(TcpDeviceTest, AClosedLinkEndsWithItsOwnCopiesAtEitherSide) {
  WriteOnce();
  const uint64_t cookie = WriteHeld(kTarget, kUntilTarget);
  b.transport().CloseLink(Pair::kB);
  a.transport().CloseLink(Pair::kA);
  ASSERT_TRUE(PumpUntil({&a, &b}, [&] { return a.closed.contains(Pair::kA); })) << "it copies nothing";
  EXPECT_EQ(a.completions[cookie].code, Code::kCancelled);
  PumpFor({&a, &b}, std::chrono::milliseconds(50));
  EXPECT_FALSE(b.closed.contains(Pair::kB));
  fake_cuda_release(kTarget);
  ASSERT_TRUE(pair.Until([&] { return b.closed.contains(Pair::kB); }));
  EXPECT_TRUE(b.signals.empty());
}

TEST_F(TcpDeviceTest, ASourceIsTheCallersAgainOnlyWhenItsCopiesAreOver) {
  WriteOnce();
  const uint64_t cookie = WriteHeld(kSource, 1);
  a.transport().CloseLink(Pair::kA);
  PumpFor({&a, &b}, std::chrono::milliseconds(50));
  EXPECT_FALSE(a.Completed(cookie));
  EXPECT_FALSE(a.closed.contains(Pair::kA));
  fake_cuda_release(kSource);
  ASSERT_TRUE(pair.Until([&] { return a.closed.contains(Pair::kA) && b.down.contains(Pair::kB); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kCancelled);
}

TEST_F(TcpDeviceTest, ALostContextEndsTheLinkAndFencesItsGrants) {
  WriteOnce();
  const uint64_t cookie = WriteHeld(kTarget, kUntilTarget);
  use.devices->ExpectLeftovers();
  fake_cuda_lose(0, kTarget, kUncorrectable, 0);
  fake_cuda_release(kTarget);
  ASSERT_TRUE(pair.Until([&] { return b.down.contains(Pair::kB) && a.Completed(cookie); }));
  EXPECT_EQ(b.down[Pair::kB].code(), Code::kInternal);
  EXPECT_NE(b.down[Pair::kB].message().find("ECC"), std::string::npos) << b.down[Pair::kB].message();
  EXPECT_NE(a.completions[cookie].code, Code::kOk);
  b.transport().Revoke(Pair::kB, kGrant);
  b.transport().CloseLink(Pair::kB);
  a.transport().CloseLink(Pair::kA);
  ASSERT_TRUE(pair.Until(
      [&] { return b.closed.contains(Pair::kB) && a.closed.contains(Pair::kA) && !b.revoked.empty(); }));
  EXPECT_TRUE(b.signals.empty());
}

TEST_F(TcpDeviceTest, AContextThatIsLostBeforeAnythingIsPinnedIsTheReasonThatIsTold) {
  use.devices->ExpectLeftovers();
  fake_cuda_lose(0, kTarget, kUncorrectable, 0);
  a.Post(Pair::kA, 0, Write());
  ASSERT_TRUE(pair.Until([&] { return b.down.contains(Pair::kB) && a.pending() == 0; }));
  EXPECT_EQ(b.down[Pair::kB].code(), Code::kInternal);
  EXPECT_NE(b.down[Pair::kB].message().find("ECC"), std::string::npos) << b.down[Pair::kB].message();
}

TEST_F(TcpDeviceTest, ADriverCallThatBlocksHoldsUpNoHostMemory) {
  WriteOnce();
  const TestMemory host_source(4096, /*shared=*/true);
  const TestMemory host_target(4096, /*shared=*/true);
  const Op host{.kind = OpKind::kWrite,
                .local = b.Register(host_source, Access::kLocal).name.id,
                .remote = b.Import(Pair::kB, a.Register(host_target, Access::kReadWrite)),
                .length = 4096,
                .grant = {},
                .signal = {}};
  fake_cuda_block(0, "cuMemcpyAsync", 1, 60'000);
  const uint64_t cookie = a.Post(Pair::kA, 0, Write());
  ASSERT_TRUE(pair.Until([&] { return fake_cuda_blocked(0) > 0; }));
  for (int i = 0; i < 20; ++i) {
    const uint64_t beside = b.Post(Pair::kB, 0, host);
    ASSERT_TRUE(pair.Until([&] { return b.Completed(beside); }));
    EXPECT_EQ(b.completions[beside].code, Code::kOk);
  }
  EXPECT_FALSE(a.Completed(cookie)) << "the driver's call did not block";
  fake_cuda_unblock(0);
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kOk);
}

/// What is written twice on a lane ends as it was written last.
TEST_F(TcpDeviceTest, WritesOfOneLaneLandInTheirOrder) {
  const TestMemory other(kTcpDeviceSize, TestPlace::kDevice);
  for (uint64_t round = 0; round < 20; ++round) {
    source.Fill(2 * round + 10);
    other.Fill(2 * round + 11);
    Op second = Write();
    const Described region = a.RegisterAs(9, 100 + static_cast<uint32_t>(round), other, Access::kLocal);
    second.local = region.name.id;
    a.Post(Pair::kA, 0, Write());
    a.Post(Pair::kA, 0, second);
    ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
    ASSERT_TRUE(SameBytes(other.Read(), target.Read())) << round;
    a.transport().Deregister(9);
    ASSERT_TRUE(pair.Until([&] { return a.deregistered.contains(9); }));
  }
}

/// One end of an operation is host memory, the other a device's.
class TcpMixedTest : public ::testing::TestWithParam<TestPlace> {};

TEST_P(TcpMixedTest, WritesAndReadsGoBothWays) {
  const Machine machine = MachineOf(StagedOverTcp());
  const DeviceUse use{machine};
  const bool device = GetParam() == TestPlace::kDevice;
  const TestMemory at_a(kTcpDeviceSize + 5, device ? TestPlace::kDevice : TestPlace::kPrivate);
  const TestMemory at_b(kTcpDeviceSize + 5, device ? TestPlace::kPrivate : TestPlace::kDevice);
  Pair pair(StagedOverTcp().factory);
  ASSERT_TRUE(pair.Connect());
  Op op{.local = pair.a.Register(at_a, Access::kLocal).name.id,
        .remote = pair.a.Import(Pair::kA, pair.b.Register(at_b, Access::kReadWrite)),
        .length = kTcpDeviceSize + 5,
        .grant = {},
        .signal = {}};
  for (const OpKind kind : {OpKind::kWrite, OpKind::kRead}) {
    op.kind = kind;
    at_a.Fill(1);
    at_b.Fill(2);
    TestMemory expected(kTcpDeviceSize + 5, TestPlace::kPrivate);
    expected.Fill(kind == OpKind::kWrite ? 1 : 2);
    const uint64_t cookie = pair.a.Post(Pair::kA, 0, op);
    ASSERT_TRUE(pair.Until([&] { return pair.a.Completed(cookie); }));
    EXPECT_EQ(pair.a.completions[cookie].code, Code::kOk);
    EXPECT_TRUE(SameBytes(at_a.Read(), expected.Read()));
    EXPECT_TRUE(SameBytes(at_b.Read(), expected.Read()));
  }
}

INSTANTIATE_TEST_SUITE_P(Source, TcpMixedTest, ::testing::Values(TestPlace::kDevice, TestPlace::kPrivate),
                         [](const auto& tested) {
                           return tested.param == TestPlace::kDevice ? "Device" : "Host";
                         });

/// Writes both ways and reads on two lanes, over so much pinned memory.
class TcpPinnedTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(TcpPinnedTest, AllEndsAndNoMoreIsPinnedThanTheSettingAllows) {
  constexpr size_t kLength = 6U << 20;
  constexpr size_t kPiece = kLength / 4;
  const Machine machine = MachineOf(StagedOverTcp());
  const DeviceUse use{machine};
  // In turn of a's and b's device.
  const TestMemory from_a(kLength, TestPlace::kDevice);
  const TestMemory from_b(kLength, TestPlace::kDevice);
  const TestMemory at_a(kLength, TestPlace::kDevice);
  const TestMemory at_b(kLength, TestPlace::kDevice);
  const TestMemory read_by_a(kLength, TestPlace::kDevice);
  from_a.Fill(1);
  from_b.Fill(2);
  Pair pair(StagedOverTcp().factory, Pinned(GetParam()));
  ASSERT_TRUE(pair.Connect());
  const uint64_t before = fake_cuda_calls("cuMemHostAlloc");
  Op write_a{.local = pair.a.Register(from_a, Access::kLocal).name.id,
             .remote = pair.a.Import(Pair::kA, pair.b.Register(at_b, Access::kReadWrite)),
             .length = kPiece,
             .grant = {},
             .signal = {}};
  Op read_a = write_a;
  read_a.kind = OpKind::kRead;
  read_a.local = pair.a.Register(read_by_a, Access::kLocal).name.id;
  Op write_b = write_a;
  const Described source_b = pair.b.Register(from_b, Access::kRead);
  write_b.local = source_b.name.id;
  write_b.remote = pair.b.Import(Pair::kB, pair.a.Register(at_a, Access::kReadWrite));
  read_a.remote = pair.a.Import(Pair::kA, source_b);
  for (uint32_t i = 0; i < 4; ++i) {
    for (Op* const op : {&write_a, &write_b, &read_a}) {
      op->local_offset = op->remote_offset = i * kPiece;
      (op == &write_b ? pair.b : pair.a).Post(op == &write_b ? Pair::kB : Pair::kA, i % 2, *op);
    }
  }
  ASSERT_TRUE(pair.Until([&] { return pair.a.pending() == 0 && pair.b.pending() == 0; }));
  EXPECT_TRUE(SameBytes(from_a.Read(), at_b.Read()));
  EXPECT_TRUE(SameBytes(from_b.Read(), at_a.Read()));
  EXPECT_TRUE(SameBytes(from_b.Read(), read_by_a.Read()));
  // No block is given back to the driver before the end. Each of the four queues has a page of words.
  constexpr uint64_t kQueues = 4;
  const uint64_t blocks = fake_cuda_calls("cuMemHostAlloc") - before - kQueues;
  EXPECT_LE(blocks, 2 * std::max<uint64_t>(GetParam() >> 20, 2)) << "of both transports together";
  EXPECT_GE(blocks, 4U) << "each has one for either direction";
}

INSTANTIATE_TEST_SUITE_P(MiB, TcpPinnedTest, ::testing::Values(1U << 20, 2U << 20, 3U << 20, 8U << 20),
                         [](const auto& tested) { return std::to_string(tested.param >> 20); });

}  // namespace
}  // namespace weightcast::transport
