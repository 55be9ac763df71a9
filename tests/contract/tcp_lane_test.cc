// Lanes of tcp: sockets that are cut, what that leaves behind, and how they begin again.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <random>

#include "base/socket.h"
#include "base/strings.h"
#include "contract/child.h"
#include "contract/suite.h"
#include "contract/tcp_lanes.h"
#include "fake_cuda/fake_cuda.h"
#include "trace/metrics.h"
#include "transport/tcp/factory.h"

namespace weightcast::transport {
namespace {

constexpr size_t kLaneSize = 1U << 20;

/// This process' descriptor of a lane as Describe tells it, "LOCAL to PEER"; -1: there is none.
int FindSocket(std::string_view path) {
  int found = -1;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    const auto fd = ParseNumber<int>(entry->d_name);
    if (!fd) continue;
    const auto peer = PeerAddressOf(*fd);
    const auto local = LocalAddressOf(*fd);
    if (!peer.ok() || !local.ok() || local->family() == AF_UNIX) continue;
    if (StrCat(local->ToString(), " to ", peer->ToString()) == path) found = *fd;
  }
  closedir(folder);
  return found;
}

/// From "tcp: 3 lanes, LOCAL to PEER, LOCAL to PEER (failed: why), ...".
std::string PathOfLane(const std::string& description, uint32_t lane) {
  size_t at = 0;
  for (uint32_t i = 0; i <= lane; ++i) at = description.find(", ", at) + 2;
  return description.substr(at, description.find_first_of(",(", at) - at);
}

enum class Cut : uint8_t {
  kEnd,    ///< What was sent arrives, and then the end.
  kReset,  ///< The peer hears of it at once, though what has come stays in its socket.
};

/// Whether the lane was there to be cut.
bool CutLane(const Side& side, LinkId link, uint32_t lane, Cut how = Cut::kEnd) {
  const int fd = FindSocket(PathOfLane(side.transport().Describe(link), lane));
  if (fd < 0) return false;
  const sockaddr none{.sa_family = AF_UNSPEC, .sa_data = {}};
  return (how == Cut::kEnd ? shutdown(fd, SHUT_RDWR) : connect(fd, &none, sizeof none)) == 0;
}

class TcpLaneTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(pair.Connect());
    ASSERT_EQ(a.ready[Pair::kA], 3U);
    source.Fill(1);
    op = {.local = a.Register(source, Access::kLocal).name.id,
          .remote = a.Import(Pair::kA, b.Register(target, Access::kReadWrite)),
          .length = kLaneSize,
          .grant{},
          .signal{}};
  }
  Completion Run(uint32_t lane) {
    const uint64_t cookie = a.Post(Pair::kA, lane, op);
    EXPECT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
    return a.completions[cookie];
  }
  Pair pair{kTcp, WithLanes(3)};
  Side& a = pair.a;
  Side& b = pair.b;
  const TestMemory source{kLaneSize, true};
  const TestMemory target{kLaneSize, true};
  Op op{.grant{}, .signal{}};
};

TEST_F(TcpLaneTest, TheOthersGoOnWhenOneIsCut) {
  std::array<std::vector<uint64_t>, 3> cookies;
  for (int i = 0; i < 8; ++i) {
    for (uint32_t lane = 0; lane < 3; ++lane) cookies[lane].push_back(a.Post(Pair::kA, lane, op));
  }
  ASSERT_TRUE(CutLane(a, Pair::kA, 1));
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0 && b.lanes_down.size() == 1; }));
  for (uint32_t lane = 0; lane < 3; ++lane) {
    for (const uint64_t cookie : cookies[lane]) {
      const Completion& done = a.completions[cookie];
      EXPECT_TRUE(done.code == Code::kOk || (lane == 1 && done.code == Code::kUnavailable));
    }
  }
  EXPECT_EQ(a.completions[cookies[1].back()].code, Code::kUnavailable);
  ASSERT_EQ(a.lanes_down.size(), 1U);
  EXPECT_EQ(a.lanes_down[0].lane, 1U);
  EXPECT_EQ(b.lanes_down[0].lane, 1U);
  EXPECT_FALSE(a.down.contains(Pair::kA));
  EXPECT_EQ(Run(2).code, Code::kOk);

  ASSERT_TRUE(pair.Until([&] { return a.lanes_up.size() == 1 && b.lanes_up.size() == 1; }));
  for (uint32_t lane = 0; lane < 3; ++lane) EXPECT_TRUE(CutLane(a, Pair::kA, lane));
  ASSERT_TRUE(pair.Until([&] { return a.down.contains(Pair::kA) && b.down.contains(Pair::kB); }));
  EXPECT_EQ(a.lanes_down.size(), 4U);
  PumpFor({&a, &b}, std::chrono::milliseconds(300));
  EXPECT_EQ(a.lanes_up.size(), 1U) << "a link that is down stays so";
}

TEST_F(TcpLaneTest, AFailedLaneBeginsAgain) {
  for (uint32_t round = 0; round < 6; ++round) {
    a.Forget();
    b.Forget();
    const uint32_t lane = round % 3;
    const bool at_a = round % 2 == 0;
    ASSERT_TRUE(CutLane(at_a ? a : b, at_a ? Pair::kA : Pair::kB, lane, round < 3 ? Cut::kEnd : Cut::kReset));
    ASSERT_TRUE(pair.Until([&] { return a.lanes_down.size() == 1 && b.lanes_down.size() == 1; }));
    if (a.lanes_up.empty()) {
      EXPECT_EQ(a.transport().Post(Pair::kA, lane, std::array{op}), 0U);
      const std::string text = a.transport().Describe(Pair::kA);
      EXPECT_TRUE(text.starts_with("tcp: 2 of 3 lanes, ")) << text;
      EXPECT_NE(text.find(" (failed: "), std::string::npos) << text;
    }
    ASSERT_TRUE(pair.Until([&] { return a.lanes_up.size() == 1 && b.lanes_up.size() == 1; }));
    EXPECT_EQ(a.lanes_up[0].lane, lane);
    EXPECT_EQ(b.lanes_up[0].lane, lane);
    EXPECT_TRUE(a.transport().Describe(Pair::kA).starts_with("tcp: 3 lanes, "));
    target.Wipe();
    EXPECT_EQ(Run(lane).code, Code::kOk);
    EXPECT_TRUE(SameBytes(source.Read(), target.Read()));
  }
}

/// What lies unread in the target's socket when a lane fails must not land once the writer has been told: it
/// sends the same bytes elsewhere, and then the memory is the target's again.
TEST_F(TcpLaneTest, NothingOfAFailedLaneLandsOnceItsOperationsHaveCompleted) {
  for (const Cut how : {Cut::kEnd, Cut::kReset}) {
    a.Forget();
    b.Forget();
    // The target does not look: as much as the sockets take waits there.
    std::vector<uint64_t> lost;
    for (int i = 0; i < 8; ++i) lost.push_back(a.Post(Pair::kA, 0, op));
    PumpFor({&a}, std::chrono::milliseconds(20));
    ASSERT_TRUE(CutLane(a, Pair::kA, 0, how));
    ASSERT_TRUE(PumpUntil({&a}, [&] { return a.lanes_down.size() == 1; }));
    PumpFor({&a}, std::chrono::milliseconds(20));
    EXPECT_TRUE(std::ranges::none_of(lost, [&](uint64_t cookie) { return a.Completed(cookie); }))
        << "nothing was received from the target yet";
    ASSERT_TRUE(pair.Until(
        [&] { return std::ranges::all_of(lost, [&](uint64_t cookie) { return a.Completed(cookie); }); }));
    for (const uint64_t cookie : lost) EXPECT_NE(a.completions[cookie].code, Code::kOk);
    ASSERT_EQ(Run(1).code, Code::kOk);
    target.Wipe();
    PumpFor({&a, &b}, std::chrono::milliseconds(50));
    EXPECT_TRUE(target.Wiped());
    ASSERT_TRUE(pair.Until([&] { return a.lanes_up.size() == 1 && b.lanes_up.size() == 1; }));
  }
}

/// Cut again and again, at either side and in the middle of what tells the other of it.
TEST_F(TcpLaneTest, ALinkLivesOnThroughAnyNumberOfFailures) {
  std::mt19937 random(5);
  size_t failures = 0;
  const auto healed = [&] { return a.lanes_up.size() == failures && b.lanes_up.size() == failures; };
  const auto cut = [&](uint32_t lane, Cut how) {
    const bool at_a = random() % 2 == 0;
    failures += CutLane(at_a ? a : b, at_a ? Pair::kA : Pair::kB, lane, how) ? 1 : 0;
  };
  while (failures < 10) {
    const auto first = static_cast<uint32_t>(random() % 3);
    const Cut how = random() % 2 == 0 ? Cut::kEnd : Cut::kReset;
    cut(first, how);
    PumpFor({&a, &b}, std::chrono::microseconds(random() % 500));
    if (random() % 2 == 0) cut((first + 1) % 3, how);  // One that would have told of it.
    ASSERT_TRUE(pair.Until([&] {
      for (uint32_t lane = 0; lane < 3; ++lane) {
        std::vector<Op> ops{op};
        if (a.pending() < 30) a.TryPost(Pair::kA, lane, ops);
      }
      return healed() || a.down.contains(Pair::kA) || b.down.contains(Pair::kB);
    })) << a.lanes_up.size()
        << " and " << b.lanes_up.size() << " of " << failures << ": " << a.transport().Describe(Pair::kA);
    ASSERT_FALSE(a.down.contains(Pair::kA)) << a.down[Pair::kA].message();
    ASSERT_FALSE(b.down.contains(Pair::kB)) << b.down[Pair::kB].message();
  }
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0; }));
  EXPECT_EQ(a.lanes_down.size(), failures);
  for (uint32_t lane = 0; lane < 3; ++lane) EXPECT_EQ(Run(lane).code, Code::kOk);
}

/// The same over device memory: the target's device 1 copies, and for a while it copies nothing.
class TcpDeviceLaneTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(pair.Connect());
    source.Fill(1);
    op = {.local = a.Register(source, Access::kLocal).name.id,
          .remote = a.Import(Pair::kA, b.Register(target, Access::kReadWrite)),
          .length = 4 * kLaneSize,
          .grant{},
          .signal{}};
  }
  Code Run(uint32_t lane) {
    const uint64_t cookie = a.Post(Pair::kA, lane, op);
    EXPECT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
    return a.completions[cookie].code;
  }
  /// Posts on a lane while the device holds its copies; returns when one of the target's has begun.
  uint64_t PostHeld(uint32_t lane) {
    fake_cuda_hold(1);
    const auto begun = [] { return trace::CounterNamed("gpu.copies").value(); };
    const uint64_t enough = begun() + op.length / kLaneSize + 1;
    const uint64_t cookie = a.Post(Pair::kA, lane, op);
    EXPECT_TRUE(pair.Until([&] { return begun() >= enough; }));
    return cookie;
  }
  const Subject subject{.factory = kTcp, .place = TestPlace::kDevice, .other_place = {}};
  Machine machine = MachineOf(subject);
  DeviceUse use{machine};
  const TestMemory source{4 * kLaneSize, TestPlace::kDevice};
  const TestMemory target{4 * kLaneSize, TestPlace::kDevice};
  Pair pair{kTcp, WithLanes(3)};
  Side& a = pair.a;
  Side& b = pair.b;
  Op op{.grant{}, .signal{}};
};

TEST_F(TcpDeviceLaneTest, WhatACutLaneHeldIsGivenBackWhenTheTargetsCopiesAreOver) {
  for (uint32_t round = 0; round < 6; ++round) {
    const uint32_t lane = round / 2;
    const bool at_a = round % 2 == 0;
    a.Forget();
    b.Forget();
    ASSERT_EQ(Run((lane + 1) % 3), Code::kOk);
    const uint64_t cookie = PostHeld(lane);
    ASSERT_TRUE(CutLane(at_a ? a : b, at_a ? Pair::kA : Pair::kB, lane));
    ASSERT_TRUE(pair.Until([&] { return a.lanes_down.size() == 1 && b.lanes_down.size() == 1; }));
    PumpFor({&a, &b}, std::chrono::milliseconds(200));
    EXPECT_FALSE(a.Completed(cookie)) << "it may still land";
    EXPECT_TRUE(a.lanes_up.empty());
    fake_cuda_release(1);
    ASSERT_TRUE(pair.Until([&] { return a.Completed(cookie); }));
    EXPECT_EQ(a.completions[cookie].code, Code::kUnavailable);
    source.Fill(static_cast<uint8_t>(2 + round));
    ASSERT_EQ(Run((lane + 2) % 3), Code::kOk);
    EXPECT_TRUE(SameBytes(source.Read(), target.Read()));
    ASSERT_TRUE(pair.Until([&] { return a.lanes_up.size() == 1 && b.lanes_up.size() == 1; }));
    EXPECT_TRUE(SameBytes(source.Read(), target.Read()));
  }
}

TEST_F(TcpDeviceLaneTest, ALinkLivesOnThroughFailures) {
  std::mt19937 random(7);
  size_t failures = 0;
  while (failures < 6) {
    const auto lane = static_cast<uint32_t>(random() % 3);
    for (int i = 0; i < 6; ++i) a.Post(Pair::kA, lane, op);
    PumpFor({&a, &b}, std::chrono::microseconds(random() % 3000));
    const bool at_a = random() % 2 == 0;
    const Cut how = random() % 2 == 0 ? Cut::kEnd : Cut::kReset;
    failures += CutLane(at_a ? a : b, at_a ? Pair::kA : Pair::kB, lane, how) ? 1 : 0;
    ASSERT_TRUE(pair.Until([&] {
      return a.pending() == 0 && a.lanes_up.size() == failures && b.lanes_up.size() == failures;
    })) << a.transport().Describe(Pair::kA);
    target.Wipe();
    ASSERT_EQ(Run(lane), Code::kOk);
    ASSERT_TRUE(SameBytes(source.Read(), target.Read()));
  }
}

TEST(TcpPeerTest, AStoppedPeerEndsItsLanesWithinTheLease) {
  Settings settings = TestSettings();
  settings.lease = std::chrono::seconds(1);
  Child child([&](Channel& channel) {
    Side side(kTcp, settings);
    ConnectOver(channel, side, Pair::kB, Role::kResponder);
    const TestMemory memory(kLaneSize, false);
    channel.Send(Pack(side.Register(memory, Access::kReadWrite)));
    while (!channel.Readable()) side.Pump();
  });
  Side side(kTcp, settings);
  ConnectOver(child.channel(), side, Pair::kA, Role::kInitiator);
  const TestMemory memory(kLaneSize, false);
  const Described local = side.Register(memory, Access::kLocal);
  const RemoteRegion remote = side.Import(Pair::kA, Unpack(child.channel().Receive()));
  child.Stop();
  std::vector<Op> ops(100,
                      {.local = local.name.id, .remote = remote, .length = kLaneSize, .grant{}, .signal{}});
  for (uint32_t lane = 0; lane < side.ready[Pair::kA]; ++lane)
    ASSERT_GT(side.TryPost(Pair::kA, lane, ops), 50U);
  // The kernel looks at the time-out when it probes the closed window, so a little later.
  ASSERT_TRUE(PumpUntil({&side}, [&] { return side.down.contains(Pair::kA); }, std::chrono::seconds(20)));
  EXPECT_EQ(side.pending(), 0U);
}

}  // namespace
}  // namespace weightcast::transport
