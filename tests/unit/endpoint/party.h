#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "child_process.h"
#include "endpoint/create.h"
#include "unit/endpoint/fake_transport.h"
#include "weightcast/endpoint.h"

namespace weightcast::endpoint {

inline constexpr Duration kPatience = std::chrono::seconds(30);
inline TimePoint Soon() { return Clock::now() + kPatience; }

using test::Eventually;

/// What a party is made of; the defaults suit most tests.
struct PartyOptions {
  std::string role = "trainer";
  uint32_t rank = 0;
  Incarnation incarnation = RandomId();
  std::string job = "test";
  std::string token = "the-token-of-these-tests";
  std::function<std::string(const Identity&)> key_of{};
  std::map<std::string, std::string> settings{};
  std::function<Status(const Identity&)> admit{};
  std::function<void(Connection)> on_notice{};
  std::function<bool()> interrupted{};
  Callbacks callbacks = Callbacks::kOnThread;
};

/// An endpoint over fake transports, and what its callbacks have told.
class Party {
 public:
  explicit Party(PartyOptions options = {}) {
    EndpointOptions made;
    made.self = {options.job, options.role, options.role == "inference" ? "rollout" : "", options.rank,
                 options.incarnation};
    made.token = options.token;
    made.key_of = options.key_of;
    made.settings = SettingsOf(options.settings);
    made.admit = options.admit;
    made.on_notice = options.on_notice;
    made.interrupted = options.interrupted;
    made.callbacks = options.callbacks;
    made.on_connection = [this](Connection connection) {
      const std::lock_guard lock(mutex_);
      connections_.push_back(std::move(connection));
      changed_.notify_all();
    };
    made.on_disconnect = [this](const Identity& peer, const Status& reason) {
      const std::lock_guard lock(mutex_);
      disconnects_.emplace_back(peer, reason);
      changed_.notify_all();
    };
    auto created = CreateWith(std::move(made), kFakeFactories);
    EXPECT_TRUE(created.ok()) << created.status().ToString();
    endpoint_ = std::move(created).value();
  }

  static Settings SettingsOf(const std::map<std::string, std::string>& given) {
    Settings settings;
    EXPECT_TRUE(settings.Set("bind", "127.0.0.1").ok());
    EXPECT_TRUE(settings.Set("chunk", "4K").ok());
    for (const auto& [name, value] : given) {
      const Status status = settings.Set(name, value);
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
    return settings;
  }

  Endpoint& operator*() const { return *endpoint_; }
  Endpoint* operator->() const { return endpoint_.get(); }
  FakeTransport& fast() const { return FakeTransport::Of(endpoint_->self().incarnation, "fast"); }
  FakeTransport& slow() const { return FakeTransport::Of(endpoint_->self().incarnation, "slow"); }
  void Destroy() { endpoint_.reset(); }

  Result<Connection> Connect(const Party& other, Duration patience = kPatience) const {
    return endpoint_->Connect(other->Addresses(), other->self(), Clock::now() + patience);
  }

  /// The first connection that a peer opened.
  Connection Accepted(size_t index = 0) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return connections_.size() > index; }));
    return connections_.at(index);
  }
  std::pair<Identity, Status> Disconnected(size_t index = 0) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return disconnects_.size() > index; }));
    return disconnects_.at(index);
  }
  size_t disconnects() const {
    const std::lock_guard lock(mutex_);
    return disconnects_.size();
  }
  size_t accepted() const {
    const std::lock_guard lock(mutex_);
    return connections_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Connection> connections_;
  std::vector<std::pair<Identity, Status>> disconnects_;
  std::unique_ptr<Endpoint> endpoint_;
};

/// Bytes that differ everywhere and for each seed.
inline std::vector<std::byte> Pattern(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (auto& byte : bytes) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

/// Two parties, connected, with a source at a and a target at b.
class Pair {
 public:
  explicit Pair(size_t size = 1 << 16, Access access = Access::kReadWrite, PartyOptions a_options = {},
                PartyOptions b_options = {.role = "inference", .rank = 1})
      : a(std::move(a_options)), b(std::move(b_options)), source(Pattern(size, 1)), target(size) {
    auto connected = a.Connect(b);
    EXPECT_TRUE(connected.ok()) << connected.status().ToString();
    to_b.emplace(std::move(connected).value());
    to_a.emplace(b.Accepted());
    auto local = a->Register(source, Access::kLocal);
    auto remote = b->Register(target, access);
    EXPECT_TRUE(local.ok() && remote.ok());
    source_region.emplace(std::move(local).value());
    target_region.emplace(std::move(remote).value());
    auto made = to_b->Import(target_region->Descriptor());
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    imported = *made;
  }

  [[nodiscard]] Piece At(uint64_t offset, uint64_t length) const {
    return {source_region->Slice(offset, length).value(), imported.Slice(offset, length).value()};
  }
  Result<Transfer> WriteAll(TransferOptions options = {}) {
    const Piece all = At(0, source.size());
    return to_b->Write({&all, 1}, std::move(options));
  }

  Party a;
  Party b;
  std::vector<std::byte> source;
  std::vector<std::byte> target;
  std::optional<Connection> to_b;
  std::optional<Connection> to_a;
  std::optional<Region> source_region;
  std::optional<Region> target_region;
  weightcast::RemoteRegion imported;
};

class EndpointTest : public ::testing::Test {
 protected:
  void SetUp() override { FakeNet::Reset(); }
  void TearDown() override { FakeNet::Reset(); }
};

}  // namespace weightcast::endpoint
