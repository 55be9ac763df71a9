// The peer is another process, and it is killed or stopped in the middle.
#include <signal.h>

#include "contract/child.h"
#include "contract/names.h"
#include "contract/suite.h"

namespace weightcast::transport {
namespace {

constexpr size_t kProcessSize = 4U << 20;

class ProcessTest : public ContractTest {
 protected:
  /// In the child: writes the whole of the parent's region over and over under kGrant, until the parent
  /// says a word or is gone.
  static void WriteForEver(Channel& channel, const Subject& subject, const Machine& machine) {
    const DeviceUse use(machine);
    const TestMemory source(kProcessSize, subject.peer_place());
    Side side(subject.factory);
    ConnectOver(channel, side, kLink, Role::kInitiator);
    source.Fill(1);
    const Described local = side.Register(source, Access::kLocal);
    const RemoteRegion remote = side.Import(kLink, Unpack(channel.Receive()));
    channel.Send("go");
    for (uint32_t chunk = 0; !channel.Readable(); ++chunk) {
      const uint64_t piece = kProcessSize / 4;
      std::vector<Op> ops{{.kind = OpKind::kWrite,
                           .has_signal = true,
                           .local = local.name.id,
                           .local_offset = chunk % 4 * piece,
                           .remote = remote,
                           .remote_offset = chunk % 4 * piece,
                           .length = piece,
                           .grant = kGrant,
                           .signal = {.grant = kGrant, .transfer = 1, .chunk = chunk, .chunks = 1U << 31}}};
      side.TryPost(kLink, chunk % side.ready[kLink], ops);
      side.Pump();
      side.Forget();
    }
  }

  /// In the child: a target that does its part until the parent is gone.
  static void Receive(Channel& channel, const Subject& subject, const Machine& machine) {
    const DeviceUse use(machine);
    const TestMemory target(kProcessSize, subject.peer_place());
    Side side(subject.factory);
    ConnectOver(channel, side, kLink, Role::kResponder);
    target.Wipe();
    channel.Send(Pack(side.Register(target, Access::kReadWrite)));
    while (!channel.Readable()) side.Pump();
  }

  /// This process and the child. At the end the child is killed, and then nothing here is in its hands.
  struct Scene {
    template <typename Body>
    Scene(const Subject& of, Body body)
        : subject(of),
          machine(MachineOf(of)),
          child([this, body](Channel& channel) { body(channel, subject, machine); }),
          pid(child.pid()),
          use(machine),
          memory(kProcessSize, of.place),
          side(of.factory) {}
    ~Scene() {
      child.Kill();
      side.transport().CloseLink(kLink);
      side.transport().Deregister(1);
      Require(PumpUntil({&side}, [&] { return side.deregistered.contains(1); }), "it stays registered");
      if (use.devices) DevicesInUse::AwaitBurial(pid);
    }
    const Subject subject;
    const Machine machine;
    Child child;
    const int pid;
    const DeviceUse use;
    TestMemory memory;
    Side side;
  };

  /// A target here with the child writing to it under kGrant.
  struct Attacked : Scene {
    explicit Attacked(const Subject& of) : Scene(of, WriteForEver) {
      ConnectOver(child.channel(), side, kLink, Role::kResponder);
      child.channel().Send(Pack(side.Register(memory, Access::kGranted)));
      Require(side.transport().OpenGrant(kLink, kGrant, {}).ok(), "OpenGrant");
      child.channel().Receive();
      Require(PumpUntil({&side}, [&] { return side.signals.size() > 10; }), "nothing arrives");
    }
    bool RevokedWithin(Duration limit) {
      return PumpUntil({&side}, [&] { return !side.revoked.empty(); }, limit);
    }
  };

  struct Attacker : Scene {
    explicit Attacker(const Subject& of) : Scene(of, Receive) {
      ConnectOver(child.channel(), side, kLink, Role::kInitiator);
      local = side.Register(memory, Access::kLocal);
      remote = side.Import(kLink, Unpack(child.channel().Receive()));
    }
    /// As many as fit now.
    void Fill(OpKind kind) {
      std::vector<Op> ops(64, {.kind = kind,
                               .local = local.name.id,
                               .remote = remote,
                               .length = kProcessSize,
                               .grant{},
                               .signal{}});
      for (uint32_t lane = 0; lane < side.ready[kLink]; ++lane) side.TryPost(kLink, lane, ops);
    }
    Described local;
    RemoteRegion remote{};
  };

  /// One where devices are real: a process that has used their driver can have no child that uses it.
  static int Rounds(int wanted) { return GetParam().on_device() && !OnFakeDriver() ? 1 : wanted; }

  static void KillTheTargetOf(OpKind kind) {
    Attacker here(GetParam());
    here.Fill(kind);
    ASSERT_TRUE(PumpUntil({&here.side}, [&] { return here.side.completions.size() >= 2; }));
    here.Fill(kind);
    here.child.Kill();
    ASSERT_TRUE(
        PumpUntil({&here.side}, [&] { return here.side.pending() == 0 && here.side.down.contains(kLink); }));
    for (const auto& [cookie, done] : here.side.completions) {
      EXPECT_TRUE(done.code == Code::kOk || done.code == Code::kUnavailable || done.code == Code::kPeerDead);
    }
    EXPECT_FALSE(here.side.down[kLink].message().empty());
  }
};

TEST_P(ProcessTest, BytesAndSignalsCrossProcesses) {
  Attacked here(GetParam());
  TestMemory expected(kProcessSize, TestPlace::kPrivate);
  expected.Fill(1);
  ASSERT_TRUE(PumpUntil({&here.side}, [&] { return here.side.signals.size() > 40; }));
  EXPECT_TRUE(SameBytes(here.memory.Read(), expected.Read()));
}

TEST_P(ProcessTest, AKilledWriterIsFencedAndItsLinkGoesDown) {
  for (int round = 0; round < Rounds(3); ++round) {
    Attacked here(GetParam());
    here.child.Kill();
    here.side.transport().Revoke(kLink, kGrant);
    ASSERT_TRUE(here.RevokedWithin(kPatience));
    here.memory.Wipe();
    ASSERT_TRUE(PumpUntil({&here.side}, [&] { return here.side.down.contains(kLink); }));
    PumpFor({&here.side}, std::chrono::milliseconds(20));
    EXPECT_TRUE(here.memory.Wiped());
    here.side.transport().CloseLink(kLink);
    ASSERT_TRUE(PumpUntil({&here.side}, [&] { return here.side.closed.contains(kLink); }));
  }
}

TEST_P(ProcessTest, NothingOfAStoppedWriterLandsAfterRevokedAlsoWhenItGoesOn) {
  for (int round = 0; round < Rounds(5); ++round) {
    Attacked here(GetParam());
    here.child.Stop();
    here.side.transport().Revoke(kLink, kGrant);
    // Where the writer itself must be asked, Revoked may wait until it runs again or is dead.
    if (!here.RevokedWithin(std::chrono::milliseconds(200))) {
      here.child.Signal(SIGCONT);
      ASSERT_TRUE(here.RevokedWithin(kPatience));
      here.memory.Wipe();
    } else {
      here.memory.Wipe();
      here.child.Signal(SIGCONT);
    }
    PumpFor({&here.side}, std::chrono::milliseconds(100));
    EXPECT_TRUE(here.memory.Wiped());
    EXPECT_FALSE(here.side.down.contains(kLink));
  }
}

TEST_P(ProcessTest, AStoppedWriterThatIsKilledIsFenced) {
  Attacked here(GetParam());
  here.child.Stop();
  here.side.transport().Revoke(kLink, kGrant);
  PumpFor({&here.side}, std::chrono::milliseconds(20));
  here.child.Kill();
  ASSERT_TRUE(here.RevokedWithin(kPatience));
  here.memory.Wipe();
  PumpFor({&here.side}, std::chrono::milliseconds(20));
  EXPECT_TRUE(here.memory.Wiped());
}

TEST_P(ProcessTest, DeregisterWithAKilledWriterEnds) {
  Attacked here(GetParam());
  here.child.Kill();
  here.side.transport().Deregister(1);
  ASSERT_TRUE(PumpUntil({&here.side}, [&] { return here.side.deregistered.contains(1); }));
}

TEST_P(ProcessTest, WritesToAKilledTargetComplete) { KillTheTargetOf(OpKind::kWrite); }

TEST_P(ProcessTest, ReadsOfAKilledTargetComplete) { KillTheTargetOf(OpKind::kRead); }

TEST_P(ProcessTest, ClosingTheLinkToAStoppedTargetEndsItsOperations) {
  Attacker here(GetParam());
  here.child.Stop();
  for (int i = 0; i < 3; ++i) {
    here.Fill(OpKind::kWrite);
    PumpFor({&here.side}, std::chrono::milliseconds(10));
  }
  here.side.transport().CloseLink(kLink);
  ASSERT_TRUE(PumpUntil({&here.side}, [&] { return here.side.closed.contains(kLink); }));
  EXPECT_EQ(here.side.pending(), 0U);
}

TEST_P(ProcessTest, AStoppedTargetThatGoesOnLosesNothing) {
  Attacker here(GetParam());
  here.memory.Fill(9);
  here.child.Stop();
  here.Fill(OpKind::kWrite);
  PumpFor({&here.side}, std::chrono::milliseconds(50));
  here.child.Signal(SIGCONT);
  ASSERT_TRUE(PumpUntil({&here.side}, [&] { return here.side.pending() == 0; }));
  for (const auto& [cookie, done] : here.side.completions) EXPECT_EQ(done.code, Code::kOk);
}

WC_CONTRACT_ACROSS_PROCESSES_AND_MIXED(ProcessTest);

}  // namespace
}  // namespace weightcast::transport
