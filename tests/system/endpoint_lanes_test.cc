// Lanes of a real connection, which fail one by one and come back.
#include <fcntl.h>
#include <sched.h>

#include <cstdlib>
#include <random>

#include "base/socket.h"
#include "system/endpoint_linked.h"
#include "trace/metrics.h"

namespace weightcast::system_test {
namespace {

const PeerSetup kTcp{.transport = "tcp", .shared = false};

/// Data sockets of this process: TCP, connected, not to a port of `control`.
std::vector<int> LaneSockets(const std::vector<std::string>& control) {
  std::vector<int> lanes;
  for (int fd = 3; fd < 200; ++fd) {
    const auto peer = PeerAddressOf(fd);
    if (!peer.ok() || (peer->family() != AF_INET && peer->family() != AF_INET6)) continue;
    const bool is_control = std::any_of(control.begin(), control.end(), [&](const std::string& address) {
      return ParseHostPort(address)->port == peer->port();
    });
    if (!is_control) lanes.push_back(fd);
  }
  return lanes;
}

void Reset(int socket) {
  const sockaddr none{.sa_family = AF_UNSPEC, .sa_data = {}};
  connect(socket, &none, sizeof none);
}

bool AllLanesUp(const Linked& linked) {
  const std::string text = linked.connection->Describe();
  return text.find("tcp: 2 lanes") != std::string::npos && text.find(" 2 lanes, to ") != std::string::npos;
}

TEST(EndpointLanes, ALaneLostUnderLoadIsMadeUpFor) {
  const PeerSetup setup{.transport = "tcp", .shared = false};
  const size_t size = kSanitized ? 16 << 20 : 64 << 20;
  Linked linked(setup, size);
  const auto lanes = LaneSockets(linked.peer.addresses());
  ASSERT_GE(lanes.size(), 2U);
  Fill(linked.area.bytes, 3);
  const Piece piece = linked.At(0, size);
  auto write = linked.connection->Write({&piece, 1}, {});
  ASSERT_TRUE(write.ok());
  shutdown(lanes[0], SHUT_RDWR);
  EXPECT_TRUE(write->Wait().ok()) << write->Wait().ToString();
  linked.peer.Do("filled 3");
  EXPECT_TRUE(linked.connection->status().ok());
  for (const int lane : lanes) shutdown(lane, SHUT_RDWR);
  const Status status = linked.connection->Write({&piece, 1}, {})->Wait();
  EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
  EXPECT_NE(status.message().find("peer 0 (127.0.0.1:"), std::string::npos) << status.ToString();
}

/// Once a transfer has ended, its bytes are in place for good: what it writes over is not written again,
/// however many lanes have failed meanwhile and however much lies unread in their sockets.
TEST(EndpointLanes, WhatATransferHasWrittenIsNotWrittenAgain) {
  const size_t size = kSanitized ? 4 << 20 : 16 << 20;
  Linked linked(kTcp, size);
  std::mt19937 random(3);
  for (uint64_t round = 1; round <= 8; ++round) {
    ASSERT_TRUE(Eventually([&] { return AllLanesUp(linked); })) << linked.connection->Describe();
    const auto lanes = LaneSockets(linked.peer.addresses());
    ASSERT_EQ(lanes.size(), 2U);
    Fill(linked.area.bytes, round);
    const Piece piece = linked.At(0, size);
    // The peer stands still while the sockets fill.
    linked.peer.Signal(SIGSTOP);
    auto write = linked.connection->Write({&piece, 1}, {});
    ASSERT_TRUE(write.ok());
    (void)write->Wait(Clock::now() + FromSeconds(0.01));
    round % 2 == 0 ? Reset(lanes[random() % 2]) : (void)shutdown(lanes[random() % 2], SHUT_RDWR);
    (void)write->Wait(Clock::now() + FromSeconds(0.01));
    linked.peer.Signal(SIGCONT);
    ASSERT_TRUE(write->Wait().ok()) << write->Wait().ToString();
    linked.peer.Do("filled " + std::to_string(round));
    linked.peer.Do("fill 1000");  // Now it is the peer's.
    const Piece byte = linked.At(0, 0);
    ASSERT_TRUE(linked.connection->Write({&byte, 1}, {})->Wait().ok());
    linked.peer.Do("filled 1000");
  }
  EXPECT_TRUE(linked.connection->status().ok());
}

/// A network of this process and its children alone, with its own firewall.
class OwnNetwork {
 public:
  OwnNetwork() : old_(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) {
    made_ = old_.valid() && unshare(CLONE_NEWNET) == 0;
    usable_ = made_ && Run("ip link set lo up") && Run("nft add table inet t") &&
              Run("nft 'add chain inet t c { type filter hook input priority 0; }'");
  }
  OwnNetwork(const OwnNetwork&) = delete;
  OwnNetwork& operator=(const OwnNetwork&) = delete;
  ~OwnNetwork() {
    if (made_) setns(old_.get(), CLONE_NEWNET);
  }
  [[nodiscard]] bool usable() const { return usable_; }
  static bool Run(const std::string& command) {
    return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
  }
  /// What the firewall does with every packet from and to this port of ours.
  static bool Treat(uint16_t port, const std::string& verdict) {
    return Run(StrCat("nft 'add rule inet t c tcp sport ", port, " ", verdict, "'")) &&
           Run(StrCat("nft 'add rule inet t c tcp dport ", port, " ", verdict, "'"));
  }

 private:
  UniqueFd old_;
  bool made_ = false;
  bool usable_ = false;
};

/// Data goes on while a lane's port is treated badly, and the lane comes back from another.
void Treated(const std::string& verdict) {
  const OwnNetwork network;
  if (!network.usable()) GTEST_SKIP() << "needs root, ip and nft";
  PeerSetup setup = kTcp;
  setup.lease = "1";
  Linked linked(setup, 4 << 20);
  const Piece piece = linked.At(0, 4 << 20);
  const auto lanes = LaneSockets(linked.peer.addresses());
  ASSERT_EQ(lanes.size(), 2U);
  const uint64_t rebuilt = trace::CounterNamed("endpoint.lanes_rebuilt").value();
  ASSERT_TRUE(OwnNetwork::Treat(LocalAddressOf(lanes[0])->port(), verdict));
  const TimePoint limit = Soon();
  uint64_t seed = 0;
  while (trace::CounterNamed("endpoint.lanes_rebuilt").value() == rebuilt && Clock::now() < limit) {
    Fill(linked.area.bytes, ++seed);
    ASSERT_TRUE(linked.connection->Write({&piece, 1}, {})->Wait().ok());
    linked.peer.Do("filled " + std::to_string(seed));
  }
  EXPECT_TRUE(Eventually([&] { return AllLanesUp(linked); })) << linked.connection->Describe();
  EXPECT_EQ(trace::CounterNamed("endpoint.lanes_rebuilt").value(), rebuilt + 1);
  for (int i = 0; i < 3; ++i) {
    Fill(linked.area.bytes, ++seed);
    ASSERT_TRUE(linked.connection->Write({&piece, 1}, {})->Wait().ok());
    linked.peer.Do("filled " + std::to_string(seed));
  }
  EXPECT_TRUE(linked.connection->status().ok()) << linked.connection->status().ToString();
}

TEST(EndpointLanes, AFirewallThatResetsALaneOnlyCostsThatLane) {
  Treated("tcp flags & rst == 0 reject with tcp reset");
}

/// Neither side hears anything: only the lease ends it.
TEST(EndpointLanes, ASilentLaneIsGivenUpAndComesBack) { Treated("drop"); }

TEST(EndpointLanes, ASocketThatTheKernelDestroysComesBack) {
  Linked linked(kTcp, 1 << 20);
  const auto lanes = LaneSockets(linked.peer.addresses());
  ASSERT_EQ(lanes.size(), 2U);
  const uint16_t port = LocalAddressOf(lanes[1])->port();
  const uint64_t rebuilt = trace::CounterNamed("endpoint.lanes_rebuilt").value();
  if (!OwnNetwork::Run(StrCat("ss -K sport = :", port, " | grep -q ", port)))
    GTEST_SKIP() << "needs root and ss -K";
  const Piece piece = linked.At(0, 1 << 20);
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(linked.connection->Write({&piece, 1}, {})->Wait().ok());
    return trace::CounterNamed("endpoint.lanes_rebuilt").value() == rebuilt + 1;
  }));
  EXPECT_TRUE(AllLanesUp(linked)) << linked.connection->Describe();
}

}  // namespace
}  // namespace weightcast::system_test
