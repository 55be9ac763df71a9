// The peer is a process that may not do everything: system calls forbidden, another user.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include "contract/child.h"
#include "contract/names.h"
#include "contract/suite.h"

namespace weightcast::transport {
namespace {

constexpr size_t kForbiddenSize = 3U << 20 | 77;

/// Forbids the copies between processes, as the profiles of container engines do.
bool ForbidCrossProcessCopy() {
  std::array<sock_filter, 5> filter = {{
      {.code = BPF_LD | BPF_W | BPF_ABS, .jt = 0, .jf = 0, .k = offsetof(seccomp_data, nr)},
      {.code = BPF_JMP | BPF_JEQ | BPF_K, .jt = 2, .jf = 0, .k = SYS_process_vm_readv},
      {.code = BPF_JMP | BPF_JEQ | BPF_K, .jt = 1, .jf = 0, .k = SYS_process_vm_writev},
      {.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = SECCOMP_RET_ALLOW},
      {.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = SECCOMP_RET_ERRNO | EPERM},
  }};
  const sock_fprog program{.len = filter.size(), .filter = filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

class ForbiddenTest : public ContractTest {
 protected:
  /// A peer with memory that is open to all, after `restrict`; it does its part until the parent says a word.
  static void Receive(Channel& channel, const Subject& subject, const std::function<bool()>& restrict) {
    Require(restrict(), "cannot be restricted");
    Side side(subject.factory);
    ConnectOver(channel, side, kLink, Role::kResponder);
    const TestMemory target(kForbiddenSize, subject.place);
    channel.Send(Pack(side.Register(target, Access::kReadWrite)));
    while (!channel.Readable()) side.Pump();
    channel.Receive();
    TestMemory expected(kForbiddenSize, false);
    expected.Fill(9);
    channel.Send(SameBytes(target.Read(), expected.Read()) ? "same" : "different");
    channel.Receive();
  }

  /// Writes all of it and reads it back.
  static void ThereAndBack(Child& child, const Subject& subject) {
    Side side(subject.factory);
    ConnectOver(child.channel(), side, kLink, Role::kInitiator);
    const TestMemory memory(kForbiddenSize, subject.place);
    memory.Fill(9);
    const Described local = side.Register(memory, Access::kLocal);
    Op op{.local = local.name.id,
          .remote = side.Import(kLink, Unpack(child.channel().Receive())),
          .length = kForbiddenSize,
          .grant{},
          .signal{}};
    for (const OpKind kind : {OpKind::kWrite, OpKind::kRead}) {
      op.kind = kind;
      const uint64_t cookie = side.Post(kLink, 0, op);
      ASSERT_TRUE(PumpUntil({&side}, [&] { return side.Completed(cookie); }));
      ASSERT_EQ(side.completions[cookie].code, Code::kOk);
      if (kind == OpKind::kWrite) memory.Wipe();
    }
    TestMemory expected(kForbiddenSize, false);
    expected.Fill(9);
    EXPECT_TRUE(SameBytes(memory.Read(), expected.Read()));
    child.channel().Send("done");
    EXPECT_EQ(child.channel().Receive(), "same");
    child.channel().Send("end");
  }
};

TEST_P(ForbiddenTest, BytesCrossWhereThePeerMayNotCopyBetweenProcesses) {
  Child child([](Channel& channel) { Receive(channel, GetParam(), ForbidCrossProcessCopy); });
  ThereAndBack(child, GetParam());
}

TEST_P(ForbiddenTest, BytesCrossWhereWeMayNotCopyBetweenProcesses) {
  // The filter stays for ever: the test's part is a child's as well.
  Child target([](Channel& channel) { Receive(channel, GetParam(), [] { return true; }); });
  Child writer([&target](Channel& channel) {
    Require(ForbidCrossProcessCopy(), "cannot be restricted");
    ThereAndBack(target, GetParam());
    channel.Send(::testing::Test::HasFailure() ? "failed" : "fine");
  });
  EXPECT_EQ(writer.channel().Receive(), "fine");
}

/// Another user's process is reached over a network; nobody maps or copies its memory.
TEST_P(ForbiddenTest, AnotherUserIsServedByTheNetworkAlone) {
  if (getuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto become_nobody = [] {
    return setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0;
  };
  if (factory().name == "tcp" || factory().name == "verbs") {
    Child child([&](Channel& channel) { Receive(channel, GetParam(), become_nobody); });
    return ThereAndBack(child, GetParam());
  }
  const auto meet = [](Channel& channel, Role role) {
    Side side(factory());
    channel.Send(std::to_string(side.self()));
    const Incarnation peer = std::stoull(channel.Receive());
    const auto deadline = Clock::now() + std::chrono::seconds(2);
    Transport& transport = side.transport();
    auto blob =
        transport.OpenLink(kLink, role, peer, role == Role::kInitiator ? "" : channel.Receive(), deadline);
    Require(blob.ok(), "OpenLink");
    channel.Send(*blob);
    Status status;
    if (role == Role::kInitiator) status = transport.Establish(kLink, channel.Receive());
    if (status.ok()) {
      Require(PumpUntil({&side}, [&] { return side.down.contains(kLink) || side.ready.contains(kLink); }),
              "neither ready nor down");
      status = side.down[kLink];
    }
    return std::string(status.message());
  };
  for (const Role role : {Role::kInitiator, Role::kResponder}) {
    Child child([&](Channel& channel) {
      Require(become_nobody(), "setuid");
      channel.Send(meet(channel, role == Role::kInitiator ? Role::kResponder : Role::kInitiator));
      channel.Receive();
    });
    const std::string here = meet(child.channel(), role);
    const std::string there = child.channel().Receive();
    EXPECT_NE(here, "") << "it became ready";
    EXPECT_NE(there, "") << "it became ready";
    EXPECT_NE((here + there).find("only for processes of one user"), std::string::npos)
        << here << " / " << there;
    child.channel().Send("end");
  }
}

WC_CONTRACT_ON_HOST_ACROSS_PROCESSES(ForbiddenTest);

}  // namespace
}  // namespace weightcast::transport
