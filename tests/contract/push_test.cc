// Writes to open device memory over shm, copied by the writer's device: the target's processor is not needed,
// and can wait for what it cannot stop.
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "contract/child.h"
#include "contract/devices.h"
#include "contract/names.h"
#include "contract/suite.h"
#include "fake_cuda/fake_cuda.h"
#include "trace/metrics.h"

namespace weightcast::transport {
namespace {

constexpr size_t kPushSize = 1U << 20;

Subject Pushes() {
  return {.factory = {"shm_pull", &CreateShmTransport}, .place = TestPlace::kDevice, .other_place = {}};
}

/// a's memory is of device 0, b's of device 1.
class PushTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(pair.Connect());
    source.Fill(1);
    target.Wipe();
    local = a.Register(source, Access::kLocal);
    there = b.Register(target, Access::kReadWrite);
    remote = a.Import(Pair::kA, there);
  }
  [[nodiscard]] Op Write() const {
    return {.kind = OpKind::kWrite,
            .local = local.name.id,
            .remote = remote,
            .length = kPushSize,
            .grant = {},
            .signal = {}};
  }
  /// One write, so that the target is mapped.
  void WriteOnce() {
    const uint64_t cookie = a.Post(Pair::kA, 0, Write());
    ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
    ASSERT_EQ(a.completions[cookie].code, Code::kOk);
  }
  /// Another, whose copy has begun and is held by the writer's device; returns its cookie.
  uint64_t WriteHeld() {
    fake_cuda_hold(0);
    const uint64_t begun = Begun();
    const uint64_t cookie = a.Post(Pair::kA, 0, Write());
    EXPECT_TRUE(pair.Until([&] { return Begun() > begun; }));
    return cookie;
  }
  static uint64_t Begun() { return trace::CounterNamed("gpu.copies").value(); }
  bool Arrived() {
    const auto expected = source.Read();
    return SameBytes(target.Read(), expected);
  }

  Machine machine = MachineOf(Pushes());
  DeviceUse use{machine};
  TestMemory source{kPushSize, TestPlace::kDevice};
  TestMemory target{kPushSize, TestPlace::kDevice};
  Pair pair{Pushes().factory};
  Side& a = pair.a;
  Side& b = pair.b;
  Described local;
  Described there;
  RemoteRegion remote{};
};

TEST_F(PushTest, AnOpenWriteNeedsNothingOfTheTargetsProcessor) {
  WriteOnce();
  source.Fill(2);
  const uint64_t cookie = a.Post(Pair::kA, 0, Write());
  ASSERT_TRUE(PumpUntil({&a}, [&] { return a.Completed(cookie); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kOk);
  EXPECT_TRUE(Arrived());
}

TEST_F(PushTest, ASignalComesAfterTheBytes) {
  Op op = Write();
  op.has_signal = true;
  op.signal = {.grant = {}, .transfer = 5, .chunk = 0, .chunks = 1};
  a.Post(Pair::kA, 0, op);
  ASSERT_TRUE(pair.Until([&] { return b.signals.size() == 1; }));
  EXPECT_EQ(b.signals[0].signal.transfer, 5U);
  EXPECT_TRUE(Arrived());
}

TEST_F(PushTest, TheLastOfWritesToTheSameBytesStays) {
  const TestMemory other(kPushSize, TestPlace::kDevice);
  other.Fill(7);
  const Described filled = a.Register(other, Access::kLocal);
  Op last = Write();
  last.local = filled.name.id;
  for (int round = 0; round < 3; ++round) {
    a.Post(Pair::kA, 0, Write());
    const uint64_t cookie = a.Post(Pair::kA, 0, last);
    ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
    EXPECT_TRUE(SameBytes(target.Read(), other.Read()));
    target.Wipe();
  }
}

TEST_F(PushTest, ADeregisteredTargetWaitsForTheWritersCopy) {
  WriteOnce();
  const uint64_t cookie = WriteHeld();
  b.transport().Deregister(there.name.id);
  PumpFor({&a, &b}, std::chrono::milliseconds(50));
  EXPECT_FALSE(b.deregistered.contains(there.name.id)) << "it is being written";
  fake_cuda_release(0);
  ASSERT_TRUE(pair.Until([&] { return b.deregistered.contains(there.name.id) && a.Completed(cookie); }));
  target.Wipe();
  const uint64_t late = a.Post(Pair::kA, 0, Write());
  ASSERT_TRUE(pair.Until([&] { return a.Completed(late); }));
  EXPECT_EQ(a.completions[late].code, Code::kPermission);
  EXPECT_TRUE(target.Wiped());
}

TEST_F(PushTest, AClosedLinkWaitsForTheWritersCopy) {
  WriteOnce();
  WriteHeld();
  b.transport().CloseLink(Pair::kB);
  PumpFor({&a, &b}, std::chrono::milliseconds(50));
  EXPECT_FALSE(b.closed.contains(Pair::kB)) << "its memory is being written";
  EXPECT_EQ(a.pending(), 1U) << "its source is being read";
  fake_cuda_release(0);
  ASSERT_TRUE(pair.Until([&] { return b.closed.contains(Pair::kB) && a.pending() == 0; }));
}

TEST_F(PushTest, AWriterThatClosesItsLinkKeepsItsSourceUntilTheCopyIsOver) {
  WriteOnce();
  WriteHeld();
  a.transport().CloseLink(Pair::kA);
  PumpFor({&a, &b}, std::chrono::milliseconds(50));
  EXPECT_FALSE(a.closed.contains(Pair::kA));
  b.transport().CloseLink(Pair::kB);
  fake_cuda_release(0);
  ASSERT_TRUE(pair.Until([&] { return a.closed.contains(Pair::kA) && b.closed.contains(Pair::kB); }));
}

TEST_F(PushTest, ARevokeWaitsForNoOpenWrite) {
  ASSERT_TRUE(b.transport().OpenGrant(Pair::kB, kGrant, {}).ok());
  WriteOnce();
  WriteHeld();
  b.transport().Revoke(Pair::kB, kGrant);
  EXPECT_TRUE(PumpUntil({&b}, [&] { return !b.revoked.empty(); }));
  fake_cuda_release(0);
}

// Whoever writes under a grant can be revoked at any time: only the target's own device may copy.
TEST_F(PushTest, AWriteUnderAGrantIsPulledAlsoIntoOpenMemory) {
  ASSERT_TRUE(b.transport().OpenGrant(Pair::kB, kGrant, {}).ok());
  WriteOnce();
  Op op = Write();
  op.grant = kGrant;
  const uint64_t cookie = a.Post(Pair::kA, 0, op);
  PumpUntil({&a}, [&] { return a.Completed(cookie); }, std::chrono::milliseconds(50));
  EXPECT_FALSE(a.Completed(cookie)) << "the target's processor has no part in it";
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kOk);
}

// So the target maps the source.
TEST_F(PushTest, OpenMemoryThatTheWriterCannotMapIsPulled) {
  constexpr int kNotSupported = 801;
  fake_cuda_fail(0, "cuCtxEnablePeerAccess", 1, kNotSupported);
  const uint64_t cookie = a.Post(Pair::kA, 0, Write());
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
  EXPECT_EQ(a.completions[cookie].code, Code::kOk);
  EXPECT_TRUE(Arrived());
}

TEST_F(PushTest, ALostContextOfTheWriterEndsTheLink) {
  WriteOnce();
  const uint64_t cookie = WriteHeld();
  use.devices->ExpectLeftovers();
  fake_cuda_lose(0, 0, kUncorrectable, 0);
  fake_cuda_release(0);
  ASSERT_TRUE(pair.Until([&] { return a.down.contains(Pair::kA) && a.Completed(cookie); }));
  EXPECT_EQ(a.down[Pair::kA].code(), Code::kInternal);
  EXPECT_NE(a.completions[cookie].code, Code::kOk);
  a.transport().CloseLink(Pair::kA);
  b.transport().CloseLink(Pair::kB);
  ASSERT_TRUE(pair.Until([&] { return a.closed.contains(Pair::kA) && b.closed.contains(Pair::kB); }));
}

// --- Two processes

/// In the child: writes into the parent's open memory for ever.
void PushForEver(Channel& channel, const Machine& machine) {
  const DeviceUse use(machine);
  const TestMemory source(kPushSize, TestPlace::kDevice);
  Side side(Pushes().factory);
  ConnectOver(channel, side, kLink, Role::kInitiator);
  const Described local = side.Register(source, Access::kLocal);
  const RemoteRegion remote = side.Import(kLink, Unpack(channel.Receive()));
  for (bool told = false; !channel.Readable(); side.Forget()) {
    std::vector<Op> ops{{.kind = OpKind::kWrite,
                         .local = local.name.id,
                         .remote = remote,
                         .length = kPushSize,
                         .grant = {},
                         .signal = {}}};
    side.TryPost(kLink, 0, ops);
    side.Pump();
    if (!told && !side.completions.empty()) channel.Send("written"), told = true;
  }
}

/// Open memory here, and a child that writes to it, held by its device in the middle of a copy.
class PushedAcrossTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ConnectOver(child.channel(), side, kLink, Role::kResponder);
    there = side.Register(target, Access::kReadWrite);
    child.channel().Send(Pack(there));
    ASSERT_TRUE(PumpUntil({&side}, [&] { return child.channel().Readable(); }));
    EXPECT_EQ(child.channel().Receive(), "written");
    const uint64_t before = fake_cuda_pieces();
    ASSERT_TRUE(PumpUntil({&side}, [&] { return fake_cuda_pieces() > before; }));
    fake_cuda_hold(-1);
    PumpFor({&side}, std::chrono::milliseconds(20));
  }
  void TearDown() override {
    child.Kill();
    DevicesInUse::AwaitBurial(pid);
  }
  bool Deregistered(Duration patience = kPatience) {
    return PumpUntil({&side}, [&] { return side.deregistered.contains(there.name.id); }, patience);
  }

  Machine machine = MachineOf(Pushes());
  Child child{[this](Channel& channel) { PushForEver(channel, machine); }};
  const int pid = child.pid();
  DeviceUse use{machine};
  TestMemory target{kPushSize, TestPlace::kDevice};
  Side side{Pushes().factory};
  Described there;
};

TEST_F(PushedAcrossTest, AStoppedWriterHoldsOpenMemoryUntilItGoesOn) {
  child.Stop();
  side.transport().Deregister(there.name.id);
  fake_cuda_release(-1);
  EXPECT_FALSE(Deregistered(std::chrono::milliseconds(50)));
  child.Signal(SIGCONT);
  ASSERT_TRUE(Deregistered());
  target.Wipe();
  PumpFor({&side}, std::chrono::milliseconds(50));
  EXPECT_TRUE(target.Wiped());
}

// The end of a process says nothing of its device's copies. The driver here lets them go on for a while.
TEST_F(PushedAcrossTest, TheCopiesOfAKilledWriterAreWaitedFor) {
  child.Kill();
  const TimePoint killed = Clock::now();
  fake_cuda_release(-1);
  ASSERT_TRUE(PumpUntil({&side}, [&] { return side.down.contains(kLink); }));
  side.transport().Deregister(there.name.id);
  side.transport().CloseLink(kLink);
  ASSERT_TRUE(Deregistered());
  EXPECT_GE(Clock::now() - killed, std::chrono::seconds(2));
  EXPECT_TRUE(PumpUntil({&side}, [&] { return side.closed.contains(kLink); }));
  target.Wipe();
  PumpFor({&side}, std::chrono::milliseconds(50));
  EXPECT_TRUE(target.Wiped());
}

}  // namespace
}  // namespace weightcast::transport
