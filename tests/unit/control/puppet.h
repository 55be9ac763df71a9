#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/strings.h"
#include "control/client.h"
#include "protocol/identity.h"
#include "weightcast/worker.h"

namespace weightcast::control {

inline constexpr Duration kPatience = std::chrono::seconds(20);

inline protocol::WorkerName TrainerOf(uint32_t rank) {
  return {.role = protocol::Role::kTrainer, .engine = "", .rank = rank};
}
inline protocol::WorkerName RankOf(const std::string& engine, uint32_t rank = 0) {
  return {.role = protocol::Role::kInference, .engine = engine, .rank = rank};
}

/// A worker over a real client that follows the protocol but moves no bytes: an inference rank is complete
/// when it has granted.
class Puppet {
 public:
  struct Options {
    std::string address;
    std::map<std::string, std::string> settings;
    protocol::WorkerName name;
    uint32_t world_size = 1;
    std::string job = "default";
    std::vector<protocol::ShardInfo> shards;
    bool follows = true;  ///< Answers the controller by itself.
    uint32_t version = protocol::kProtocolVersion;
  };

  explicit Puppet(Options options) : options_(std::move(options)) {
    if (options_.shards.empty()) {
      const Shape shape = {256, 4};
      options_.shards.push_back({.tensor = {.name = "w", .dtype = DType::kF32, .shape = shape},
                                 .box = {.offset = {0, 0}, .size = shape},
                                 .declared = false});
    }
    auto settings = options_.settings;
    settings["controller"] = options_.address;
    settings["job"] = options_.job;
    ClientOptions client;
    client.absence = absence_;
    client.settings = *Settings::From(settings);
    client.hello.protocol = options_.version;
    client.hello.model = "policy";
    client.hello.name = options_.name;
    client.hello.world_size = options_.world_size;
    client.hello.secret = protocol::NewSecret();
    client.hello.incarnation = protocol::IncarnationOf(client.hello.secret);
    client.hello.addresses = {"127.0.0.1:1"};
    client.hello.host = "test";
    client.on_message = [this](protocol::ControllerMessage message) { OnMessage(std::move(message)); };
    client.on_state = [this](LinkState state, const Status& status) {
      const std::lock_guard lock(mutex_);
      states_.push_back(state);
      if (state == LinkState::kEnded) end_ = status;
      changed_.notify_all();
    };
    auto started = ControlClient::Start(std::move(client));
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    // The first callback may come before this: it waits for the client.
    const std::lock_guard lock(mutex_);
    client_ = std::move(*started);
    changed_.notify_all();
  }
  ~Puppet() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;  // What is being delivered must not wait for the client any more.
    }
    changed_.notify_all();
    client_.reset();
  }

  ControlClient& client() { return *client_; }
  [[nodiscard]] const Absence& absence() const { return *absence_; }
  /// In the run that the controller told last; false if it told none in time.
  bool Publish(int64_t number) {
    if (!WaitWelcomes(1)) return false;
    client_->Send(protocol::Published{.number = number, .run = run()});
    return true;
  }
  protocol::Run run() {
    const std::lock_guard lock(mutex_);
    return run_;
  }
  template <typename Predicate>
  bool Wait(Predicate predicate, Duration limit = kPatience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, predicate);
  }
  bool WaitEnded(Duration limit = kPatience) {
    return Wait([&] { return !states_.empty() && states_.back() == LinkState::kEnded; }, limit);
  }
  bool WaitServed(int64_t number) {
    return Wait([&] { return served_.number >= number; });
  }
  bool WaitDone(size_t count) {
    return Wait([&] { return done_.size() >= count; });
  }
  bool WaitWelcomes(size_t count) {
    return Wait([&] { return welcomes_ >= count; });
  }
  bool WaitLost(size_t count) {
    return Wait([&] { return lost_.size() >= count; });
  }
  bool WaitConnected() {
    return Wait([&] { return !states_.empty() && states_.back() == LinkState::kConnected; });
  }
  Status end() {
    const std::lock_guard lock(mutex_);
    return end_;
  }
  std::vector<protocol::Done> done() {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  std::vector<protocol::Lost> lost() {
    const std::lock_guard lock(mutex_);
    return lost_;
  }
  size_t welcomes() {
    const std::lock_guard lock(mutex_);
    return welcomes_;
  }
  size_t breaks() {
    const std::lock_guard lock(mutex_);
    size_t count = 0;
    for (const LinkState state : states_) count += state == LinkState::kBroken ? 1 : 0;
    return count;
  }
  Version served() {
    const std::lock_guard lock(mutex_);
    return served_;
  }

 private:
  void OnMessage(protocol::ControllerMessage message) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closing_ || client_ != nullptr; });
    if (closing_) return;
    std::visit([&](auto& what) { Hear(what); }, message);
    changed_.notify_all();
  }
  template <typename Message>
  void Hear(const Message&) {}
  void Hear(const protocol::Welcome& welcome) {
    ++welcomes_;
    run_ = welcome.run;
    if (!options_.follows) return;
    client_->Send(protocol::Register{.shards = options_.shards, .rules = {}});
    if (options_.name.role == protocol::Role::kInference)
      client_->Send(
          protocol::LandingMap{.epoch = 0, .regions = {"r"}, .places = {{.region = 0, .offset = 0}}});
  }
  void Hear(const protocol::Plan& plan) {
    if (options_.follows) client_->Send(protocol::Prepared{plan.epoch});
  }
  void Hear(const protocol::GrantRequest& request) {
    if (!options_.follows) return;
    version_ = request.version;
    client_->Send(
        protocol::Granted{.update = request.update, .grants = {{.source = 0, .slot = 1, .id = RandomId()}}});
    client_->Send(protocol::Ready{.update = request.update,
                                  .bytes = 4096,
                                  .seconds = 0.01,
                                  .sources = {{.source = 0, .bytes = 4096, .seconds = 0.01}}});
  }
  void Hear(const protocol::Commit& commit) { client_->Send(protocol::Committed{.update = commit.update}); }
  void Hear(const protocol::Serve& serve) {
    served_ = version_;
    client_->Send(protocol::Serving{.update = serve.update, .version = version_});
  }
  void Hear(const protocol::Abort& abort) {
    if (options_.name.role == protocol::Role::kInference)
      client_->Send(protocol::Aborted{.update = abort.update, .lost = true});
  }
  void Hear(const protocol::Done& done) { done_.push_back(done); }
  void Hear(const protocol::Lost& lost) { lost_.push_back(lost); }

  Options options_;
  const std::shared_ptr<Absence> absence_ = std::make_shared<Absence>();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<ControlClient> client_;
  bool closing_ = false;
  std::vector<LinkState> states_;
  std::vector<protocol::Done> done_;
  std::vector<protocol::Lost> lost_;
  Status end_;
  Version version_;
  Version served_;
  size_t welcomes_ = 0;
  protocol::Run run_;
};

}  // namespace weightcast::control
