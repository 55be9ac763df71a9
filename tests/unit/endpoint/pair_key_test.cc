// Who has no key of the pair gets nowhere, over each real transport: the choice of a transport comes after
// the proof, and every lane of a link proves what the two have told each other then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fake_ibverbs/fabric.h"
#include "transport/shm/factory.h"
#include "transport/tcp/factory.h"
#include "transport/verbs/verbs_transport.h"
#include "unit/endpoint/party.h"

namespace weightcast::endpoint {
namespace {

/// How often each attack is tried; WC_TEST_ATTEMPTS=200 tries harder.
int Attempts() {
  const char* wanted = std::getenv("WC_TEST_ATTEMPTS");
  return wanted == nullptr ? 10 : std::atoi(wanted);
}

/// Queue pairs over a network inside this process.
Result<std::unique_ptr<transport::Transport>> CreateVerbsOnFake(const transport::TransportOptions& options) {
  static fake::Fabric fabric({.background = true});
  fake::HostConfig host;
  host.devices.assign(1, {});
  host.devices[0].name = "fake0";
  return transport::verbs::VerbsTransport::Create(options, fabric.NewHost(host));
}

std::string KeyOf(const Identity& peer) { return "key of " + ToString(peer); }

/// One worker with one transport.
struct Worker {
  Worker(const transport::TransportFactory& factory, const Identity& self) {
    EndpointOptions options;
    options.self = self;
    options.token = "the-token-of-these-tests";
    options.settings = Party::SettingsOf({});
    if (self.role == "inference") options.key_of = KeyOf;
    options.on_connection = [this](const Connection&) { ++accepted; };
    options.on_disconnect = [this](const Identity&, const Status&) { ++disconnected; };
    auto made = CreateWith(std::move(options), std::span(&factory, 1));
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    endpoint = std::move(made).value();
  }
  std::atomic<int> accepted{0};
  std::atomic<int> disconnected{0};
  std::unique_ptr<Endpoint> endpoint;
};

using PairKeyTest = ::testing::TestWithParam<transport::TransportFactory>;

TEST_P(PairKeyTest, ALiveConnectionIsReplacedByNobodyWithoutItsKey) {
  const Identity trainer{.job = "test", .role = "trainer", .engine = "", .rank = 0, .incarnation = 7001};
  const Identity engine{.job = "test", .role = "inference", .engine = "a", .rank = 0, .incarnation = 7002};
  Worker target(GetParam(), engine);
  Worker source(GetParam(), trainer);
  auto live = source.endpoint->Connect(target.endpoint->Addresses(), engine, Soon(), KeyOf(trainer));
  ASSERT_TRUE(live.ok()) << live.status().ToString();
  EXPECT_EQ(live->transport_name(), GetParam().name);

  std::vector<std::byte> bytes = Pattern(1 << 16, 1);
  std::vector<std::byte> landed(bytes.size());
  const Region from = *source.endpoint->Register(bytes, Access::kLocal);
  const Region to = *target.endpoint->Register(landed, Access::kReadWrite);
  const auto remote = live->Import(to.Descriptor());
  ASSERT_TRUE(remote.ok()) << remote.status().ToString();
  const auto write = [&] {
    landed.assign(landed.size(), std::byte{0});
    const Piece all{from.Whole(), remote->Whole()};
    auto transfer = live->Write({&all, 1}, {});
    return transfer.ok() ? transfer->Wait() : transfer.status();
  };
  ASSERT_TRUE(write().ok());

  // It says that it is the live one, the same started again, and another of the plan.
  Identity again = trainer;
  again.incarnation += 10;
  Identity other = trainer;
  other.rank = 1;
  other.incarnation += 20;
  for (const Identity& claimed : {trainer, again, other}) {
    Worker impostor(GetParam(), claimed);
    for (int i = 0; i < Attempts(); ++i) {
      const std::array<std::string, 3> keys = {"", "the-token-of-these-tests", "key of " + std::to_string(i)};
      const std::string& key = keys[static_cast<size_t>(i) % keys.size()];
      const auto connected = impostor.endpoint->Connect(target.endpoint->Addresses(), engine, Soon(), key);
      ASSERT_EQ(connected.status().code(), Code::kPermission) << connected.status().ToString();
    }
  }
  EXPECT_EQ(target.accepted, 1);
  EXPECT_EQ(target.disconnected, 0);
  EXPECT_TRUE(write().ok());
  EXPECT_EQ(landed, bytes);
}

INSTANTIATE_TEST_SUITE_P(All, PairKeyTest,
                         ::testing::Values(transport::TransportFactory{"tcp", &transport::CreateTcpTransport},
                                           transport::TransportFactory{"shm", &transport::CreateShmTransport},
                                           transport::TransportFactory{"verbs", &CreateVerbsOnFake}),
                         [](const auto& given) { return std::string(given.param.name); });

}  // namespace
}  // namespace weightcast::endpoint
