// The trial of a way between devices, before the first byte of anybody's goes over it: a way that lies gives
// neither an error nor a late completion.
#include <gmock/gmock.h>

#include "contract/child.h"
#include "contract/devices.h"
#include "contract/names.h"
#include "contract/pull_across.h"
#include "contract/suite.h"
#include "device/gpus.h"
#include "fake_cuda/fake_cuda.h"
#include "trace/metrics.h"

namespace weightcast::transport {
namespace {

constexpr size_t kTrialSize = 256 << 10;
constexpr int kRefused = 0;
constexpr int kGarbage = 2;

/// a's memory is of device 0, b's of device 1.
class TrialTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(pair.Connect());
    source.Fill(1);
    target.Wipe();
    local = a.Register(source, Access::kReadWrite);
    there = b.Register(target, Access::kReadWrite);
    remote = a.Import(Pair::kA, there);
    ASSERT_TRUE(b.transport().OpenGrant(Pair::kB, kGrant, {}).ok());
  }
  [[nodiscard]] Op Operation(OpKind kind) const {
    return {.kind = kind,
            .local = local.name.id,
            .remote = remote,
            .length = kTrialSize,
            .grant = kind == OpKind::kWrite ? kGrant : GrantName{},
            .signal = {}};
  }
  Code Run(const Op& op) {
    const uint64_t cookie = a.Post(Pair::kA, 0, op);
    EXPECT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
    EXPECT_FALSE(a.down.contains(Pair::kA) || b.down.contains(Pair::kB));
    return a.completions[cookie].code;
  }
  /// The bytes arrive all the same, staged through host memory.
  void ExpectStaged(const Op& op) {
    const bool write = op.kind == OpKind::kWrite;
    const uint64_t before = BytesStaged();
    EXPECT_EQ(Run(op), Code::kOk);
    EXPECT_EQ(BytesStaged(), before + kTrialSize);
    EXPECT_TRUE(SameBytes(write ? target.Read() : source.Read(), write ? source.Read() : target.Read()));
  }
  /// Each trial makes two of these calls.
  static uint64_t Trials() { return fake_cuda_calls("cuMemsetD8Async") / 2; }

  Machine machine = MachineOf(Pulls());
  DeviceUse use{machine};
  TestMemory source{kTrialSize, TestPlace::kDevice};
  TestMemory target{kTrialSize, TestPlace::kDevice};
  Pair pair{Pulls().factory};
  Side& a = pair.a;
  Side& b = pair.b;
  Described local;
  Described there;
  RemoteRegion remote{};
};

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST_F(TrialTest, AWriteOverAWayThatLiesIsStagedAndOneWarningNamesBothDevices) {
  fake_cuda_peer(0, 1, kGarbage);
  testing::internal::CaptureStderr();
  ExpectStaged(Operation(OpKind::kWrite));
  target.Wipe();
  ExpectStaged(Operation(OpKind::kWrite));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(Count(said, "cannot use the memory of device"), 1U) << said;
  EXPECT_EQ(Count(said, "GPU-"), 2U) << said;
  EXPECT_THAT(said, ::testing::HasSubstr("IOMMU"));
}

TEST_F(TrialTest, AReadOverAWayThatLiesIsStaged) {
  fake_cuda_peer(1, 0, kGarbage);
  source.Wipe();
  target.Fill(2);
  ExpectStaged(Operation(OpKind::kRead));
}

// Device 1, which pulls, would read the truth. Whoever maps memory may write to it as well.
TEST_F(TrialTest, AWayThatLiesToWritersOnlyIsNotUsed) {
  fake_cuda_peer(1, 0, kGarbage);
  ExpectStaged(Operation(OpKind::kWrite));
}

TEST_F(TrialTest, AWayThatTheDriverRefusesIsNotUsed) {
  fake_cuda_peer(0, 1, kRefused);
  fake_cuda_peer(1, 0, kRefused);
  ExpectStaged(Operation(OpKind::kWrite));
}

TEST_F(TrialTest, ATrialInWhichACallFailsEndsAsOneThatLies) {
  constexpr int kNotSupported = 801;
  fake_cuda_fail(0, "cuMemsetD8Async", 1, kNotSupported);
  ExpectStaged(Operation(OpKind::kWrite));
}

TEST_F(TrialTest, WithoutACellThereIsNoTrialAndTheWayIsNotUsed) {
  fake_cuda_fail(0, "cuMemHostAlloc", 1, kOutOfMemory);
  ExpectStaged(Operation(OpKind::kWrite));
}

TEST_F(TrialTest, EachDirectionOfALinkIsTriedOnceHoweverManyRegionsItHas) {
  const uint64_t before = Trials();
  EXPECT_EQ(Run(Operation(OpKind::kWrite)), Code::kOk);
  EXPECT_EQ(Trials(), before + 1);
  const Described again = a.Register(source, Access::kLocal);
  Op other = Operation(OpKind::kWrite);
  other.local = again.name.id;
  EXPECT_EQ(Run(other), Code::kOk);
  EXPECT_EQ(Trials(), before + 1);
  EXPECT_EQ(Run(Operation(OpKind::kRead)), Code::kOk) << "the other direction";
  EXPECT_EQ(Trials(), before + 2);
}

TEST_F(TrialTest, MemoryOfTheSameDeviceNeedsNoTrial) {
  const uint64_t before = Trials();
  const TestMemory same(kTrialSize, TestPlace::kDevice);
  ASSERT_EQ(same.memory().ordinal, source.memory().ordinal);
  Op op = Operation(OpKind::kRead);
  op.remote = a.Import(Pair::kA, b.Register(same, Access::kRead));
  EXPECT_EQ(Run(op), Code::kOk);
  EXPECT_EQ(Trials(), before);
}

TEST_F(TrialTest, ALinkThatIsClosedInATrialGivesItsCellBack) {
  fake_cuda_hold(1);
  const uint64_t before = Trials();
  const uint64_t cookie = a.Post(Pair::kA, 0, Operation(OpKind::kWrite));
  ASSERT_TRUE(pair.Until([&] { return Trials() > before; }));
  a.transport().CloseLink(Pair::kA);
  b.transport().CloseLink(Pair::kB);
  ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie) && a.closed.contains(Pair::kA); }));
  EXPECT_FALSE(b.closed.contains(Pair::kB)) << "its device still copies from the cell";
  fake_cuda_release(1);
  ASSERT_TRUE(pair.Until([&] { return b.closed.contains(Pair::kB); }));
}

// --- Two processes

/// In the child: memory that the parent writes to, until the parent is gone.
void ReceiveAndCompare(Channel& channel, const Machine& machine) {
  const DeviceUse use(machine);
  const TestMemory of_device_0(kTrialSize, TestPlace::kDevice);
  const TestMemory target(kTrialSize, TestPlace::kDevice);
  target.Wipe();
  Side side(Pulls().factory);
  ConnectOver(channel, side, kLink, Role::kResponder);
  Require(side.transport().OpenGrant(kLink, kGrant, {}).ok(), "OpenGrant");
  channel.Send(Pack(side.Register(target, Access::kGranted)));
  while (!channel.Readable()) side.Pump();
  if (channel.Receive() != "compare") return;
  const TestMemory expected(kTrialSize, TestPlace::kPrivate);
  expected.Fill(1);
  channel.Send(SameBytes(target.Read(), expected.Read()) ? "same" : "different");
}

class TrialAcrossTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ConnectOver(child.channel(), side, kLink, Role::kInitiator);
    remote = side.Import(kLink, Unpack(child.channel().Receive()));
    local = side.Register(source, Access::kLocal);
  }
  void TearDown() override {
    child.Kill();
    DevicesInUse::AwaitBurial(pid);
  }
  uint64_t Write() {
    return side.Post(kLink, 0,
                     {.kind = OpKind::kWrite,
                      .local = local.name.id,
                      .remote = remote,
                      .length = kTrialSize,
                      .grant = kGrant,
                      .signal = {}});
  }

  Machine machine = MachineOf(Pulls());
  Child child{[this](Channel& channel) { ReceiveAndCompare(channel, machine); }};
  const int pid = child.pid();
  DeviceUse use{machine};
  TestMemory source{kTrialSize, TestPlace::kDevice};
  Side side{Pulls().factory};
  Described local;
  RemoteRegion remote{};
};

TEST_F(TrialAcrossTest, AWriteOverAWayThatLiesIsStagedToTheOtherProcess) {
  fake_cuda_peer(0, 1, kGarbage);
  source.Fill(1);
  const uint64_t before = BytesStaged();
  const uint64_t cookie = Write();
  ASSERT_TRUE(PumpUntil({&side}, [&] { return side.Completed(cookie); }));
  EXPECT_EQ(side.completions[cookie].code, Code::kOk);
  EXPECT_EQ(BytesStaged(), before + kTrialSize);
  child.channel().Send("compare");
  EXPECT_EQ(child.channel().Receive(), "same");
}

TEST_F(TrialAcrossTest, APeerThatIsKilledInATrialHoldsNothing) {
  const uint64_t streams = fake_cuda_live(pid).streams;
  fake_cuda_hold(1);
  const uint64_t cookie = Write();
  ASSERT_TRUE(PumpUntil({&side}, [&] { return fake_cuda_live(pid).streams > streams; }));
  child.Kill();
  fake_cuda_release(1);
  ASSERT_TRUE(PumpUntil({&side}, [&] { return side.Completed(cookie) && side.down.contains(kLink); }));
  side.transport().CloseLink(kLink);
  side.transport().Deregister(local.name.id);
  ASSERT_TRUE(PumpUntil({&side}, [&] { return side.deregistered.contains(local.name.id); }));
  DevicesInUse::AwaitBurial(pid);  // Then the cell is freed: the driver ends who frees what is mapped.
}

}  // namespace
}  // namespace weightcast::transport
