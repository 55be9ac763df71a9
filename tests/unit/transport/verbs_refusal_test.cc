#include <gmock/gmock.h>

#include <algorithm>
#include <cerrno>

#include "unit/transport/verbs_world.h"

// Calls of libibverbs that fail, one after another, and what a device says by itself.

namespace weightcast::transport::verbs {
namespace {

using fake::Call;
using ::testing::HasSubstr;

class VerbsRefusalTest : public VerbsPairTest {
 protected:
  /// OpenLink at a; the link is closed again.
  Status Offer(LinkId link) {
    auto offer = a.side->transport().OpenLink(link, Role::kInitiator, b.side->self(), "", Clock::now() + 20s);
    return offer.status();
  }
  [[nodiscard]] int QueuePairs(const Node& node, int device = 0) const {
    return world.fabric.CountersOf(*node.host, device).qps;
  }
};

TEST_F(VerbsRefusalTest, ATransportThatCannotBeMadeSaysWhyAndLeavesNothing) {
  for (const Call call : {Call::kGetDeviceList, Call::kOpenDevice, Call::kAllocPd, Call::kCreateCompChannel,
                          Call::kCreateCq, Call::kCreateSrq, Call::kRegMr, Call::kPostSrqRecv}) {
    SCOPED_TRACE(static_cast<int>(call));
    const auto host = world.fabric.NewHost(Nics(1));
    world.fabric.Fail(*host, call, 1, ENOMEM, 9);
    const auto made = VerbsTransport::Create({.settings = {}, .self = 1}, host);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), Code::kUnavailable);
    EXPECT_THAT(made.status().message(), ::testing::AnyOf(HasSubstr("nic0"), HasSubstr("no RDMA device")));
    if (call == Call::kRegMr) {
      EXPECT_THAT(made.status().message(), HasSubstr("ulimit -l"));
    }
    const fake::Counters left = world.fabric.CountersOf(*host, 0);
    EXPECT_EQ(left.contexts + left.pds + left.cqs + left.srqs + left.mrs + left.channels, 0);
  }
}

TEST_F(VerbsRefusalTest, ForkIsMadeSafeWhereTheKernelDoesNot) {
  for (const auto& [before, after] :
       {std::pair(IBV_FORK_UNNEEDED, IBV_FORK_UNNEEDED), std::pair(IBV_FORK_DISABLED, IBV_FORK_ENABLED)}) {
    fake::HostConfig config = Nics(1);
    config.fork_status = before;
    const auto host = world.fabric.NewHost(config);
    EXPECT_TRUE(VerbsTransport::Create({.settings = {}, .self = 1}, host).ok());
    EXPECT_EQ(host->ForkStatus(), after);
  }
}

TEST_F(VerbsRefusalTest, ForkThatCannotBeMadeSafeIsToldOnce) {
  fake::HostConfig config = Nics(1);
  config.fork_status = IBV_FORK_DISABLED;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    const auto host = world.fabric.NewHost(config);
    world.fabric.Fail(*host, Call::kForkInit, 1, EINVAL);
    EXPECT_TRUE(VerbsTransport::Create({.settings = {}, .self = 1}, host).ok());
  }
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(told, '\n'), 1) << told;
  EXPECT_THAT(told, HasSubstr("RDMAV_FORK_SAFE=1"));
}

TEST_F(VerbsRefusalTest, OneDeviceThatFailsLeavesTheOthers) {
  const auto host = world.fabric.NewHost(Nics(2));
  world.fabric.Fail(*host, Call::kCreateCq, 1, ENOMEM);
  EXPECT_TRUE(VerbsTransport::Create({.settings = {}, .self = 1}, host).ok());
}

TEST_F(VerbsRefusalTest, MemoryThatCannotBePinnedNamesTheLimit) {
  Join(Nics(2));
  const TestMemory memory(4096, false);
  const RegionName name{.owner = a.side->self(), .id = 50, .generation = 1};
  const fake::Counters before = world.fabric.CountersOf(*a.host, 0);
  world.fabric.Fail(*a.host, Call::kRegMr, 2, ENOMEM);  // At the second device.
  const auto refused = a.side->transport().Register(name, memory.memory(), Access::kReadWrite);
  EXPECT_EQ(refused.status().code(), Code::kExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("memlock"));
  EXPECT_EQ(world.fabric.CountersOf(*a.host, 0).mrs, before.mrs) << "the first device's is undone";
  EXPECT_TRUE(a.side->transport().Register(name, memory.memory(), Access::kReadWrite).ok());
}

TEST_F(VerbsRefusalTest, ADeviceThatTakesNoMoreRegionsSaysHowManyItTakes) {
  fake::HostConfig host = Nics(1);
  host.devices[0].max_mr = 3;  // The receive buffers, that of Start, and one more.
  a = world.Start(host);
  const TestMemory memory(4096, false);
  a.side->Register(memory, Access::kReadWrite);
  const auto refused = a.side->transport().Register({.owner = a.side->self(), .id = 50, .generation = 1},
                                                    memory.memory(), Access::kReadWrite);
  EXPECT_EQ(refused.status().code(), Code::kExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("at most 3 regions"));
}

TEST_F(VerbsRefusalTest, ARegionOfTooManyPartsSaysSo) {
  fake::HostConfig host = Nics(1);
  host.devices[0].max_mr_size = 64 << 10;
  a = world.Start(host);
  const TestMemory memory(Parts::kMost * (64 << 10) + 1, false);
  const auto refused = a.side->transport().Register({.owner = a.side->self(), .id = 50, .generation = 1},
                                                    memory.memory(), Access::kReadWrite);
  EXPECT_EQ(refused.status().code(), Code::kExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("nic0 registers at most 65536 bytes"));
  EXPECT_THAT(refused.status().message(), HasSubstr("several regions"));
}

TEST_F(VerbsRefusalTest, AnOfferNeedsAControlAndADataQueuePair) {
  Join();
  const int before = QueuePairs(a);
  for (const int nth : {1, 2}) {
    world.fabric.Fail(*a.host, Call::kCreateQp, nth, ENOMEM);
    EXPECT_EQ(Offer(LinkId{100}).code(), Code::kExhausted);
    EXPECT_EQ(QueuePairs(a), before);
  }
  world.fabric.Fail(*a.host, Call::kCreateQp, 3, ENOMEM);
  EXPECT_TRUE(Offer(LinkId{100}).ok()) << "one lane is enough";
  EXPECT_EQ(QueuePairs(a), before + 2);
  ExpectWorks();
}

/// Each call that an answer needs fails once, at the responder. One lane is enough.
TEST_F(VerbsRefusalTest, AnAnswerThatFailsLeavesNothing) {
  a = world.Start();
  b = world.Start();
  for (const Call call : {Call::kCreateQp, Call::kModifyQp}) {
    for (int nth = 1; nth <= (call == Call::kCreateQp ? 2 : 6); ++nth) {
      SCOPED_TRACE(nth);
      const auto offer =
          a.side->transport().OpenLink(Pair::kA, Role::kInitiator, b.side->self(), "", Clock::now() + 20s);
      ASSERT_TRUE(offer.ok());
      world.fabric.Fail(*b.host, call, nth, ENOMEM);
      const auto answer = b.side->transport().OpenLink(Pair::kB, Role::kResponder, a.side->self(), *offer,
                                                       Clock::now() + 20s);
      EXPECT_FALSE(answer.ok());
      EXPECT_EQ(QueuePairs(b), 0);
      ASSERT_TRUE(world.Close(a, Pair::kA));
    }
  }
  EXPECT_TRUE(world.Connect(a, b)) << "and then it works";
}

TEST_F(VerbsRefusalTest, ALaneThatCannotBeAnsweredIsOneLess) {
  for (const Call call : {Call::kCreateQp, Call::kModifyQp}) {
    a = world.Start();
    b = world.Start();
    world.fabric.Fail(*b.host, call, call == Call::kCreateQp ? 3 : 8, ENOMEM);
    ASSERT_TRUE(world.Connect(a, b));
    EXPECT_EQ(a.side->ready[Pair::kA], 1U);
    EXPECT_EQ(QueuePairs(a), 2);
    EXPECT_EQ(QueuePairs(b), 2);
    remote = a.side->Import(Pair::kA, b.region);
    ExpectWorks();
  }
}

/// The control queue pair of the first rail, its only lane, the control queue pair of the second.
TEST_F(VerbsRefusalTest, ARailThatCannotBeAnsweredIsLeftOut) {
  for (const int nth : {1, 4, 10}) {
    SCOPED_TRACE(nth);
    a = world.Start(Nics(2));
    b = world.Start(Nics(2));
    world.fabric.Fail(*b.host, Call::kModifyQp, nth, ENOMEM);
    ASSERT_TRUE(world.Connect(a, b));
    EXPECT_EQ(a.side->ready[Pair::kA], 2U);
    EXPECT_EQ(b.side->ready[Pair::kB], 2U);
    const int left = nth == 10 ? 1 : 0;
    EXPECT_EQ(QueuePairs(a, left), 0);
    EXPECT_EQ(QueuePairs(b, left), 0);
    EXPECT_EQ(QueuePairs(b, 1 - left), 3);
    remote = a.side->Import(Pair::kA, b.region);
    ExpectWorks(0);
    ExpectWorks(1);
  }
}

/// The initiator's queue pairs fail to connect, each in turn: one lane down is a lane less, the control queue
/// pair is the link.
TEST_F(VerbsRefusalTest, EstablishGoesOnWithWhatConnects) {
  for (int nth = 1; nth <= 6; ++nth) {
    SCOPED_TRACE(nth);
    a = world.Start();
    b = world.Start();
    const TimePoint deadline = Clock::now() + 20s;
    const auto offer = a.side->transport().OpenLink(Pair::kA, Role::kInitiator, b.side->self(), "", deadline);
    const auto answer =
        b.side->transport().OpenLink(Pair::kB, Role::kResponder, a.side->self(), *offer, deadline);
    world.fabric.Fail(*a.host, Call::kModifyQp, nth, EINVAL);
    ASSERT_TRUE(a.side->transport().Establish(Pair::kA, *answer).ok());
    if (nth <= 2) {
      ASSERT_TRUE(Until([&] { return a.side->down.contains(Pair::kA); }));
      continue;
    }
    ASSERT_TRUE(Until([&] { return a.side->ready.contains(Pair::kA) && b.side->ready.contains(Pair::kB); }));
    remote = a.side->Import(Pair::kA, b.region);
    EXPECT_EQ(a.side->lanes_down.size(), 1U);
    ASSERT_TRUE(Until([&] { return a.side->lanes_up.size() == 1 && b.side->lanes_up.size() == 1; }));
    ExpectWorks(0);
    ExpectWorks(1);
  }
}

TEST_F(VerbsRefusalTest, ALaneThatCannotBeRemadeIsTriedAgain) {
  Join();
  for (Node* refusing : {&a, &b}) {
    a.side->Forget();
    world.fabric.Fail(*refusing->host, Call::kCreateQp, 1, ENOMEM, 2);
    world.fabric.Fail(*a.host, Call::kPostSend, 1, ENOMEM);
    EXPECT_EQ(Run(0, WriteOf(a, remote, 0, 64)).code, Code::kUnavailable);
    ASSERT_TRUE(Until([&] { return a.side->lanes_up.size() == 1; }));
    ExpectWorks(0);
  }
}

TEST_F(VerbsRefusalTest, AControlMessageThatCannotBePostedGoesOverAnotherRail) {
  Join(Nics(2));
  world.fabric.Fail(*b.host, Call::kPostSend, 1, ENOMEM);
  const GrantName grant{.slot = 1, .id = 1};
  ASSERT_TRUE(b.side->transport().OpenGrant(Pair::kB, grant, {}).ok());
  const TestMemory target(4096, false);
  const RemoteRegion to = a.side->Import(Pair::kA, b.side->Register(target, Access::kGranted));
  Op op = WriteOf(a, to, 0, 4096);
  op.grant = grant;
  EXPECT_EQ(Run(0, op).code, Code::kOk);
  EXPECT_FALSE(a.side->down.contains(Pair::kA));
}

/// Asking for an unknown grant is itself a message, sent in the middle of Post.
TEST_F(VerbsRefusalTest, PostThatLosesItsLinkStillCompletes) {
  Join();
  world.fabric.Fail(*a.host, Call::kPostSend, 1, ENOMEM, 9);
  const TestMemory target(4096, false);
  const RemoteRegion to = a.side->Import(Pair::kA, b.side->Register(target, Access::kGranted));
  Op op = WriteOf(a, to, 0, 4096);
  op.grant = {.slot = 1, .id = 99};
  ASSERT_NE(Post(0, op), 0U);
  ASSERT_TRUE(Until([&] { return a.side->down.contains(Pair::kA); }));
  EXPECT_EQ(a.side->pending(), 0U);
}

/// Of several lists one is refused: nothing that was added behind it may be posted.
TEST_F(VerbsRefusalTest, NothingIsPostedBehindAListThatWasRefused) {
  for (int nth = 1; nth <= 100; nth += 33) {
    Join();
    a.memory->Fill(static_cast<uint64_t>(nth));
    std::vector<Op> ops;
    for (uint64_t i = 0; i < 100; ++i) {
      const Signal signal{.grant = {}, .transfer = 1, .chunk = 0, .chunks = 1, .checksum = 0};
      ops.push_back(i < 99 ? WriteOf(a, remote, i * 640, 640)
                           : SignalledWriteOf(a, remote, i * 640, 640, signal));
    }
    world.fabric.Fail(*a.host, Call::kPostSend, nth, ENOMEM);
    ASSERT_EQ(a.side->TryPost(Pair::kA, 0, ops), ops.size());
    ASSERT_TRUE(Until([&] { return a.side->pending() == 0; }));
    EXPECT_TRUE(b.side->signals.empty()) << "it stands for writes that never went out";
    ASSERT_TRUE(Until([&] { return a.side->lanes_up.size() == 1; }));
    ExpectWorks(0);
  }
}

TEST_F(VerbsRefusalTest, AKeyThatThePeerRefusesIsPermissionAndTheLaneComesBack) {
  Join();
  Described forged = b.region;
  RegionKey key = ParseRegionKey(forged.key).value();
  key.rkeys[0] ^= 0x5500;
  forged.key = Encode(key);
  const RemoteRegion wrong = a.side->Import(Pair::kA, forged);
  EXPECT_EQ(Run(0, WriteOf(a, wrong, 0, 64)).code, Code::kPermission);
  ASSERT_TRUE(Until([&] { return a.side->lanes_up.size() == 1 && b.side->lanes_up.size() == 1; }));
  EXPECT_EQ(a.side->lanes_down.size(), 1U);
  ExpectWorks(0);
}

TEST_F(VerbsRefusalTest, AQueuePairThatTheDeviceEndsIsMadeAnew) {
  for (const ibv_event_type type : {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR}) {
    Join(Nics(2));
    world.fabric.Inject(*b.host, 0, type);  // All of this device, the control one included.
    ASSERT_TRUE(Until([&] { return a.side->lanes_up.size() == 2 && b.side->lanes_up.size() == 2; }));
    for (uint32_t lane = 0; lane < 4; ++lane) ExpectWorks(lane);
    EXPECT_FALSE(a.side->down.contains(Pair::kA) || b.side->down.contains(Pair::kB));
  }
}

TEST_F(VerbsRefusalTest, ADeviceThatDiesIsNotUsedAgain) {
  for (const ibv_event_type type : {IBV_EVENT_DEVICE_FATAL, IBV_EVENT_CQ_ERR, IBV_EVENT_SRQ_ERR}) {
    Join(Nics(2));
    testing::internal::CaptureStderr();
    world.fabric.Inject(*b.host, 0, type);
    ASSERT_TRUE(Until([&] { return a.side->lanes_down.size() == 2 && b.side->lanes_down.size() == 2; }));
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_THAT(told, HasSubstr("nic0"));
    EXPECT_EQ(std::ranges::count(told, '\n'), 1) << told;
    ExpectWorks(1);
    ExpectWorks(3);
    EXPECT_TRUE(a.side->lanes_up.empty());
    ASSERT_TRUE(world.Close(a, Pair::kA));
    ASSERT_TRUE(world.Close(b, Pair::kB));
    ASSERT_TRUE(world.Connect(a, b));
    EXPECT_EQ(a.side->ready[Pair::kA], 2U) << "only the other device's lanes";
  }
}

/// Peers could go on writing to it there: the device is given up first.
TEST_F(VerbsRefusalTest, ADeviceThatDoesNotLetGoOfARegionIsGivenUp) {
  Join(Nics(2));
  const TestMemory memory(4096, false);
  const Described region = b.side->Register(memory, Access::kReadWrite);
  testing::internal::CaptureStderr();
  world.fabric.Fail(*b.host, Call::kDeregMr, 1, EBUSY);
  b.side->transport().Deregister(region.name.id);
  ASSERT_TRUE(Until([&] { return b.side->deregistered.contains(region.name.id); }));
  EXPECT_EQ(QueuePairs(b, 0), 0);
  EXPECT_EQ(QueuePairs(b, 1), 3);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, HasSubstr("nic0 did not deregister the"));
  EXPECT_EQ(std::ranges::count(told, '\n'), 1) << told;
  ExpectWorks(1);
  b.side->RegisterAs(region.name.id, 9, memory, Access::kReadWrite);  // Its id is free.
}

TEST_F(VerbsRefusalTest, ADeviceThatTakesNoReceivesIsGivenUpWithOneLine) {
  Join(Nics(2));
  testing::internal::CaptureStderr();
  world.fabric.Fail(*b.host, Call::kPostSrqRecv, 1, ENOMEM, 1000);
  const Signal signal{.grant = {}, .transfer = 1, .chunk = 0, .chunks = 1, .checksum = 0};
  ASSERT_NE(Post(0, SignalledWriteOf(a, remote, 0, 64, signal)), 0U);
  ASSERT_TRUE(Until([&] { return b.side->lanes_down.size() == 2; }));
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(told, '\n'), 1) << told;
  ExpectWorks(1);
}

}  // namespace
}  // namespace weightcast::transport::verbs
