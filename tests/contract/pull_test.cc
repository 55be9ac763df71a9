// Device memory over shm, pulled by the target's device: what is special about it. What holds for all memory
// is in the other suites, which run over it too.
#include <gmock/gmock.h>
#include <signal.h>

#include <cstring>
#include <thread>

#include "contract/devices.h"
#include "contract/pull_across.h"
#include "fake_cuda/fake_cuda.h"
#include "trace/metrics.h"

namespace weightcast::transport {
namespace {

/// a's device 0 holds the source, b's device 1 the target.
class PullTest : public ::testing::Test {
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
            .length = kSize,
            .grant = kGrant,
            .signal = {.grant = kGrant, .transfer = 1, .chunk = 0, .chunks = 1}};
  }
  /// One write, so that the source is mapped.
  void WriteOnce() {
    const uint64_t cookie = a.Post(Pair::kA, 0, Write());
    ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
    ASSERT_EQ(a.completions[cookie].code, Code::kOk);
    ASSERT_EQ(b.signals.size(), 1U);
    b.Forget();
  }
  /// Another, whose copy has begun and is held by the device; returns its cookie.
  uint64_t WriteHeld() {
    fake_cuda_hold(1);
    const uint64_t begun = Begun();
    const uint64_t cookie = a.Post(Pair::kA, 0, Write());
    EXPECT_TRUE(pair.Until([&] { return Begun() > begun; }));
    return cookie;
  }
  static uint64_t Begun() { return trace::CounterNamed("gpu.copies").value(); }
  static Duration Over() { return trace::TimingNamed("gpu.batch").total(); }
  static uint64_t Voided() { return trace::CounterNamed("gpu.voided_pulls").value(); }
  /// Lets the device go on; returns when its thread has seen the copy end. Drives nobody.
  static void ReleaseAndAwait() {
    const Duration over = Over();
    fake_cuda_release(1);
    const auto limit = Clock::now() + kPatience;
    while (Over() == over) {
      Require(Clock::now() < limit, "the copy does not end");
      std::this_thread::yield();
    }
  }

  Machine machine = MachineOf(Pulls());
  DeviceUse use{machine};
  TestMemory source{kSize, TestPlace::kDevice};
  TestMemory target{kSize, TestPlace::kDevice};
  Pair pair{Pulls().factory};
  Side& a = pair.a;
  Side& b = pair.b;
  Described local;
  Described there;
  RemoteRegion remote{};
};

TEST_F(PullTest, ATransportWhoseGpusAreOffRefusesThemThoughAnotherUsesThem) {
  Settings off = TestSettings();
  off.gpu = "off";
  Side side(Pulls().factory, off);
  const auto key = side.transport().Register({side.self(), 1, 1}, source.memory(), Access::kLocal);
  ASSERT_FALSE(key.ok());
  EXPECT_EQ(key.status().code(), Code::kUnavailable);
  EXPECT_THAT(key.status().message(), ::testing::HasSubstr("setting gpu"));
}

TEST_F(PullTest, ARevokeWaitsForTheOwnCopyAndItsSignalDoesNotCount) {
  WriteOnce();
  const uint64_t cookie = WriteHeld();
  b.transport().Revoke(Pair::kB, kGrant);
  PumpFor({&a, &b}, std::chrono::milliseconds(50));
  EXPECT_TRUE(b.revoked.empty()) << "its copy is still under way";
  ReleaseAndAwait();
  ASSERT_TRUE(pair.Until([&] { return !b.revoked.empty() && a.Completed(cookie); }));
  EXPECT_TRUE(b.signals.empty());
  target.Wipe();
  a.Post(Pair::kA, 0, Write());
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
  EXPECT_TRUE(target.Wiped());
}

TEST_F(PullTest, ADeregisteredTargetWaitsForTheOwnCopy) {
  WriteOnce();
  const uint64_t cookie = WriteHeld();
  b.transport().Deregister(there.name.id);
  PumpFor({&a, &b}, std::chrono::milliseconds(50));
  EXPECT_FALSE(b.deregistered.contains(there.name.id));
  ReleaseAndAwait();
  ASSERT_TRUE(pair.Until([&] { return b.deregistered.contains(there.name.id) && a.Completed(cookie); }));
}

// Check 2: the writer lets go of its source while the copy runs, and changes it.
TEST_F(PullTest, WhatWasCopiedFromASourceThatWasGivenUpDoesNotCount) {
  WriteOnce();
  WriteHeld();
  const uint64_t voided = Voided();
  a.transport().CloseLink(Pair::kA);
  ASSERT_TRUE(PumpUntil({&a}, [&] { return a.closed.contains(Pair::kA); })) << "it waits for nobody";
  EXPECT_EQ(a.pending(), 0U);
  source.Fill(2);
  ReleaseAndAwait();
  b.Pump();  // Most often before it hears that the link was closed.
  ASSERT_TRUE(pair.Until([&] { return b.down.contains(Pair::kB); }));
  EXPECT_TRUE(b.signals.empty());
  EXPECT_EQ(Voided(), voided + 1);
}

TEST_F(PullTest, WhatWasCopiedFromASourceThatWasDeregisteredDoesNotCount) {
  WriteOnce();
  const uint64_t cookie = WriteHeld();
  const uint64_t voided = Voided();
  a.transport().Deregister(local.name.id);
  PumpFor({&a, &b}, std::chrono::milliseconds(50));
  EXPECT_FALSE(a.deregistered.contains(local.name.id)) << "it is being read";
  ReleaseAndAwait();
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie) && a.deregistered.contains(local.name.id); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kCancelled);
  EXPECT_TRUE(b.signals.empty());
  EXPECT_EQ(Voided(), voided + 1);
}

TEST_F(PullTest, ALostContextEndsTheLinkAndFencesItsGrants) {
  WriteOnce();
  const uint64_t cookie = WriteHeld();
  use.devices->ExpectLeftovers();
  fake_cuda_lose(0, 1, kUncorrectable, 0);
  fake_cuda_release(1);
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

TEST_F(PullTest, ADriverCallThatBlocksHoldsUpNobodyElse) {
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
  fake_cuda_block(0, "cuMemcpyAsync", 1, 3000);
  const uint64_t cookie = a.Post(Pair::kA, 0, Write());
  ASSERT_TRUE(pair.Until([&] { return fake_cuda_blocked(0) > 0; }));
  Duration longest{};
  const auto end = Clock::now() + std::chrono::seconds(1);
  while (Clock::now() < end) {
    const auto before = Clock::now();
    const uint64_t beside = b.Post(Pair::kB, 0, host);
    ASSERT_TRUE(pair.Until([&] { return b.Completed(beside); }));
    EXPECT_EQ(b.completions[beside].code, Code::kOk);
    longest = std::max(longest, Clock::now() - before);
  }
  EXPECT_FALSE(a.Completed(cookie)) << "the driver's call did not block";
  EXPECT_LT(longest, std::chrono::seconds(2)) << "heartbeats would have stopped for as long as the call";
  fake_cuda_unblock(0);
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kOk);
}

TEST_F(PullTest, AnAllocationThatIsRegisteredTwiceIsPulledFromBoth) {
  const Described again = a.Register(source, Access::kLocal);
  WriteOnce();
  Op op = Write();
  op.local = again.name.id;
  const uint64_t cookie = a.Post(Pair::kA, 0, op);
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kOk);
  a.transport().Deregister(local.name.id);
  ASSERT_TRUE(pair.Until([&] { return a.deregistered.contains(local.name.id); }));
  EXPECT_EQ(b.signals.size(), 1U);
  const uint64_t other = a.Post(Pair::kA, 0, op);
  ASSERT_TRUE(pair.Until([&] { return a.Completed(other); }));
  EXPECT_EQ(a.completions[other].code, Code::kOk) << "the other registration is as it was";
}

// --- Two processes

TEST_F(PullAcrossTest, ASourceIsUnmappedThereBeforeItIsFreed) {
  for (int round = 0; round < 3; ++round) {
    // Most often at the address of the round before; the driver ends the process if it is mapped when freed.
    const TestMemory source(kSize, TestPlace::kDevice);
    source.Fill(1);
    const Described local = side.RegisterAs(7, 100 + static_cast<uint32_t>(round), source, Access::kLocal);
    ASSERT_EQ(WriteFrom(local), Code::kOk);
    EXPECT_EQ(Compare(), "same");
    side.transport().Deregister(7);
    ASSERT_TRUE(Deregistered(local));
  }
}

TEST_F(PullAcrossTest, AStoppedPeerHoldsASourceUntilItGoesOn) {
  const TestMemory source(kSize, TestPlace::kDevice);
  const Described local = side.Register(source, Access::kLocal);
  ASSERT_EQ(WriteFrom(local), Code::kOk);
  child.Stop();
  side.transport().Deregister(local.name.id);
  EXPECT_FALSE(Deregistered(local, std::chrono::milliseconds(50)));
  child.Signal(SIGCONT);
  EXPECT_TRUE(Deregistered(local));
}

TEST_F(PullAcrossTest, ADeadPeerHoldsNothing) {
  const TestMemory source(kSize, TestPlace::kDevice);
  const Described local = side.Register(source, Access::kLocal);
  ASSERT_EQ(WriteFrom(local), Code::kOk);
  child.Stop();
  side.transport().Deregister(local.name.id);
  EXPECT_FALSE(Deregistered(local, std::chrono::milliseconds(50)));
  child.Kill();
  EXPECT_TRUE(Deregistered(local));
  DevicesInUse::AwaitBurial(pid);
}

TEST_F(PullAcrossTest, AClosedLinkHoldsASourceUntilThePeerHasUnmappedIt) {
  const TestMemory source(kSize, TestPlace::kDevice);
  const Described local = side.Register(source, Access::kLocal);
  ASSERT_EQ(WriteFrom(local), Code::kOk);
  child.Stop();
  side.transport().CloseLink(kLink);
  ASSERT_TRUE(PumpUntil({&side}, [&] { return side.closed.contains(kLink); })) << "it waits for nobody";
  side.transport().Deregister(local.name.id);
  EXPECT_FALSE(Deregistered(local, std::chrono::milliseconds(50)));
  child.Signal(SIGCONT);
  EXPECT_TRUE(Deregistered(local));
}

/// In the child: writes for ever, and is held in the middle by the device.
void WriteUnderGrantForEver(Channel& channel, const Machine& machine) {
  const DeviceUse use(machine);
  const TestMemory source(kSize, TestPlace::kDevice);
  Side side(Pulls().factory);
  ConnectOver(channel, side, kLink, Role::kInitiator);
  const Described local = side.Register(source, Access::kLocal);
  const RemoteRegion remote = side.Import(kLink, Unpack(channel.Receive()));
  while (!channel.Readable()) {
    std::vector<Op> ops{{.kind = OpKind::kWrite,
                         .has_signal = true,
                         .local = local.name.id,
                         .remote = remote,
                         .length = kSize,
                         .grant = kGrant,
                         .signal = {.grant = kGrant, .transfer = 1, .chunk = 0, .chunks = 1U << 31}}};
    side.TryPost(kLink, 0, ops);
    side.Pump();
    side.Forget();
  }
}

/// A target here, and a child that writes.
class PulledAcrossTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ConnectOver(child.channel(), side, kLink, Role::kResponder);
    ASSERT_TRUE(side.transport().OpenGrant(kLink, kGrant, {}).ok());
    child.channel().Send(Pack(side.Register(target, Access::kGranted)));
    ASSERT_TRUE(PumpUntil({&side}, [&] { return side.signals.size() > 3; }));
    fake_cuda_hold(-1);
    PumpFor({&side}, std::chrono::milliseconds(20));  // What was over before is told.
    side.Forget();
  }
  void TearDown() override { child.Kill(); }

  Machine machine = MachineOf(Pulls());
  Child child{[this](Channel& channel) { WriteUnderGrantForEver(channel, machine); }};
  DeviceUse use{machine};
  TestMemory target{kSize, TestPlace::kDevice};
  Side side{Pulls().factory};
};

TEST_F(PulledAcrossTest, ARevokeWaitsForNoStoppedWriter) {
  child.Stop();
  side.transport().Revoke(kLink, kGrant);
  fake_cuda_release(-1);
  EXPECT_TRUE(PumpUntil({&side}, [&] { return !side.revoked.empty(); }));
  target.Wipe();
  child.Signal(SIGCONT);
  PumpFor({&side}, std::chrono::milliseconds(100));
  EXPECT_TRUE(target.Wiped());
  EXPECT_FALSE(side.down.contains(kLink));
}

TEST_F(PulledAcrossTest, WhatAKilledWriterHadOrderedDoesNotCount) {
  child.Kill();
  fake_cuda_release(-1);
  ASSERT_TRUE(PumpUntil({&side}, [&] { return side.down.contains(kLink); }));
  EXPECT_TRUE(side.signals.empty());
  side.transport().Revoke(kLink, kGrant);
  ASSERT_TRUE(PumpUntil({&side}, [&] { return !side.revoked.empty(); }));
  target.Wipe();
  PumpFor({&side}, std::chrono::milliseconds(100));
  EXPECT_TRUE(target.Wiped());
}

}  // namespace
}  // namespace weightcast::transport
