#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "contract/side.h"
#include "fake_ibverbs/fabric.h"
#include "transport/verbs/verbs_transport.h"

namespace weightcast::transport::verbs {

using namespace std::chrono_literals;

inline constexpr GrantName kGrant{.slot = 1, .id = 11};

/// A device with small queues: quick to make, and a test can fill them.
inline fake::DeviceConfig NicOn(int rail, std::string name = {}) {
  fake::DeviceConfig device;
  device.name = name.empty() ? StrCat("nic", rail) : std::move(name);
  device.ports[0].rail = rail;
  device.max_cqe = 2048;
  device.max_srq_wr = 256;
  return device;
}
inline fake::HostConfig Nics(int count) {
  fake::HostConfig host{.devices = {}};
  for (int rail = 0; rail < count; ++rail) host.devices.push_back(NicOn(rail));
  return host;
}

/// A host of the network and the transport on it, with one region that peers may read and write.
struct Node {
  std::shared_ptr<drivers::Ibverbs> host;
  std::unique_ptr<Side> side;
  std::unique_ptr<TestMemory> memory;
  Described region;
};

/// A simulated network. Its own time is virtual and moves only in Until; a transport's deadlines and waits
/// are real.
class World {
 public:
  static constexpr Duration kLease = 1s;
  /// By how much Until moves the network's time each turn.
  static constexpr fake::Duration kTurn = 1ms;

  explicit World(fake::Config config = {.virtual_time = true}) : fabric(config), config_(config) {}

  static Settings OwnSettings() {
    Settings settings = TestSettings();
    settings.lease = kLease;
    return settings;
  }
  Node Start(const fake::HostConfig& config = Nics(1), const Settings& settings = OwnSettings(),
             size_t bytes = 64 << 10) {
    Node node;
    node.host = fabric.NewHost(config);
    next_host_ = node.host;
    node.side = std::make_unique<Side>(TransportFactory{"verbs", &CreateOnNextHost}, settings);
    next_host_ = nullptr;
    node.memory = std::make_unique<TestMemory>(bytes, /*shared=*/false);
    node.memory->Wipe();
    node.region = node.side->Register(*node.memory, Access::kReadWrite);
    return node;
  }
  /// False: it did not come.
  bool Until(std::initializer_list<Side*> sides, const std::function<bool()>& done) {
    const TimePoint limit = Clock::now() + 20s;
    while (true) {
      for (Side* side : sides) side->Pump();
      if (done()) return true;
      if (Clock::now() > limit) return false;
      if (config_.virtual_time) fabric.Advance(kTurn);
    }
  }
  bool Connect(Node& a, Node& b, Duration patience = 20s) {
    const TimePoint deadline = Clock::now() + patience;
    auto offer = a.side->transport().OpenLink(Pair::kA, Role::kInitiator, b.side->self(), "", deadline);
    Require(offer.ok(), offer.status().message());
    auto answer = b.side->transport().OpenLink(Pair::kB, Role::kResponder, a.side->self(), *offer, deadline);
    Require(answer.ok(), answer.status().message());
    const Status established = a.side->transport().Establish(Pair::kA, *answer);
    Require(established.ok(), established.message());
    return Until({a.side.get(), b.side.get()},
                 [&] { return a.side->ready.contains(Pair::kA) && b.side->ready.contains(Pair::kB); });
  }
  bool Close(Node& node, LinkId link) {
    node.side->transport().CloseLink(link);
    return Until({node.side.get()}, [&] { return node.side->closed.contains(link); });
  }

  fake::Fabric fabric;

 private:
  static Result<std::unique_ptr<Transport>> CreateOnNextHost(const TransportOptions& options) {
    return VerbsTransport::Create(options, next_host_);
  }
  static inline std::shared_ptr<drivers::Ibverbs> next_host_;
  fake::Config config_;
};

/// From the same offset of the own region to the peer's.
inline Op WriteOf(const Node& from, RemoteRegion to, uint64_t at, uint64_t length) {
  Op op;
  op.local = from.region.name.id;
  op.local_offset = op.remote_offset = at;
  op.remote = to;
  op.length = length;
  return op;
}
inline Op SignalledWriteOf(const Node& from, RemoteRegion to, uint64_t at, uint64_t length,
                           const Signal& signal) {
  Op op = WriteOf(from, to, at, length);
  op.has_signal = op.first = true;
  op.grant = signal.grant;
  op.signal = signal;
  return op;
}

/// Two nodes and a link between them.
class VerbsPairTest : public ::testing::Test {
 protected:
  void TearDown() override { Drop(); }
  /// Both processes die: a graceful shutdown would wait for a network whose time stands still.
  void Drop() {
    for (Node* node : {&a, &b}) {
      if (node->host != nullptr) world.fabric.Kill(*node->host);
      *node = {};
    }
  }
  void Join(const fake::HostConfig& config_a, const fake::HostConfig& config_b,
            const Settings& settings = World::OwnSettings(), size_t bytes = 64 << 10) {
    Drop();
    a = world.Start(config_a, settings, bytes);
    b = world.Start(config_b, settings, bytes);
    ASSERT_TRUE(world.Connect(a, b));
    remote = a.side->Import(Pair::kA, b.region);
    back = b.side->Import(Pair::kB, a.region);
  }
  void Join(const fake::HostConfig& config = Nics(1)) { Join(config, config, World::OwnSettings()); }
  bool Until(const std::function<bool()>& done) { return world.Until({a.side.get(), b.side.get()}, done); }
  /// Posts from a; 0: the lane takes nothing.
  uint64_t Post(uint32_t lane, const Op& op) {
    std::vector<Op> ops{op};
    return a.side->TryPost(Pair::kA, lane, ops) == 1 ? ops[0].cookie : 0;
  }
  /// Posts from a and waits for the completion.
  Completion Run(uint32_t lane, const Op& op) {
    uint64_t cookie = 0;
    EXPECT_TRUE(Until([&] { return (cookie = Post(lane, op)) != 0; })) << "the lane takes nothing";
    EXPECT_TRUE(Until([&] { return a.side->Completed(cookie); }));
    return a.side->completions[cookie];
  }
  /// A write of fresh bytes arrives whole.
  void ExpectWorks(uint32_t lane = 0) {
    a.memory->Fill(++fills_);
    const Completion done = Run(lane, WriteOf(a, remote, 0, a.memory->bytes().size()));
    EXPECT_EQ(done.code, Code::kOk);
    EXPECT_TRUE(SameBytes(a.memory->bytes(), b.memory->bytes()));
  }

  World world;
  Node a;
  Node b;
  RemoteRegion remote{};
  RemoteRegion back{};

 private:
  uint64_t fills_ = 0;
};

}  // namespace weightcast::transport::verbs
