#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/strings.h"
#include "weightcast/worker.h"

// Engines that sleep: their memory is unmapped, something else is mapped at the same address, and never does
// a byte of a later version come to where the address led before.

namespace weightcast::test {
namespace {

using testing::HasSubstr;

constexpr size_t kBytes = 3 << 16;
constexpr double kPatience = 60;

/// WC_TEST_CYCLES: how often each test does its thing.
int Cycles() {
  const char* given = std::getenv("WC_TEST_CYCLES");
  return given != nullptr ? std::stoi(given) : 40;
}

std::byte ByteOf(int64_t version, size_t index) {
  return static_cast<std::byte>(static_cast<size_t>(version) * 31 + index % 251);
}

/// Two pieces of memory of which one at a time is mapped at an address that stays. Each can be looked at
/// through a mapping of its own.
class Remapped {
 public:
  Remapped() : at_(Map(nullptr, -1)) {
    for (int i = 0; i < 2; ++i) {
      fds_[i] = ::memfd_create("weights", MFD_CLOEXEC);
      if (::ftruncate(fds_[i], kBytes) != 0) std::abort();
      looks_[i] = Map(nullptr, fds_[i]);
    }
    Swap();
  }
  ~Remapped() {
    ::munmap(at_, kBytes);
    for (int i = 0; i < 2; ++i) {
      ::munmap(looks_[i], kBytes);
      ::close(fds_[i]);
    }
  }
  Remapped(const Remapped&) = delete;
  Remapped& operator=(const Remapped&) = delete;

  void Swap() {
    current_ = 1 - current_;
    std::memset(looks_[current_], 0, kBytes);
    ::munmap(at_, kBytes);
    if (Map(at_, fds_[current_]) != at_) std::abort();
  }
  [[nodiscard]] std::byte* at() const { return at_; }
  /// How many bytes of what is mapped now, or of the other, are not of `version`.
  [[nodiscard]] size_t Wrong(bool now, int64_t version) const {
    const std::byte* bytes = looks_[now ? current_ : 1 - current_];
    size_t wrong = 0;
    for (size_t i = 0; i < kBytes; ++i) wrong += bytes[i] == ByteOf(version, i) ? 0 : 1;
    return wrong;
  }

 private:
  static std::byte* Map(std::byte* at, int fd) {
    const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void* memory = ::mmap(at, kBytes, PROT_READ | PROT_WRITE, flags | (at == nullptr ? 0 : MAP_FIXED), fd, 0);
    if (memory == MAP_FAILED) std::abort();
    return static_cast<std::byte*>(memory);
  }

  std::byte* at_;
  int fds_[2] = {-1, -1};
  std::byte* looks_[2] = {};
  int current_ = 0;
};

std::vector<Shard> ShardsAt(std::byte* data) {
  return {{.tensor = {.name = "w", .dtype = DType::kU8, .shape = {kBytes}},
           .part = WholeOf({kBytes}),
           .memory = HostMemory({data, kBytes})}};
}

struct SuspendScene {
  std::string transport;
  LandingMode landing = LandingMode::kInPlace;
};

/// A trainer and one engine, "e".
class Suspend : public testing::TestWithParam<SuspendScene> {
 protected:
  void SetUp() override {
    static int counter = 0;
    settings_ = {{"job", StrCat("suspend-test-", ::getpid(), "-", ++counter)},
                 {"lease", "2"},
                 {"bind", "127.0.0.1"},
                 {"transport", GetParam().transport}};
    auto controller = Controller::Start({.listen = "127.0.0.1:0", .settings = settings_});
    ASSERT_TRUE(controller.ok()) << controller.status().ToString();
    controller_ = std::move(*controller);
    auto trainer = Trainer::Connect(Options(""));
    ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
    trainer_ = std::move(*trainer);
    source_.resize(kBytes);
    ASSERT_TRUE(trainer_->Register({.shards = ShardsAt(source_.data())}).ok());
    engine_ = Engine("e", memory_.at());
  }
  WorkerOptions Options(const std::string& engine) const {
    WorkerOptions options;
    options.controller = controller_->address();
    options.engine = engine;
    options.settings = settings_;
    return options;
  }
  std::unique_ptr<Inference> Engine(const std::string& name, std::byte* at) const {
    auto engine = Inference::Connect(Options(name));
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    const Status status = (*engine)->Register({.shards = ShardsAt(at)}, {.landing = GetParam().landing});
    EXPECT_TRUE(status.ok()) << status.ToString();
    return std::move(*engine);
  }
  std::shared_ptr<Update> Publish(int64_t version) {
    for (size_t i = 0; i < kBytes; ++i) source_[i] = ByteOf(version, i);
    auto update = trainer_->Publish(version);
    EXPECT_TRUE(update.ok()) << update.status().ToString();
    return *update;
  }
  /// Publishes; the engine serves it.
  void Send(int64_t version) {
    const auto update = Publish(version);
    const auto served = engine_->Wait({.run = 1, .number = version - 1}, In(kPatience));
    ASSERT_TRUE(served.ok()) << served.status().ToString();
    ASSERT_EQ(served->number, version);
    const auto stats = update->Wait(In(kPatience));
    ASSERT_TRUE(stats.ok()) << stats.status().ToString();
    ASSERT_EQ(memory_.Wrong(/*now=*/true, version), 0U);
  }

  std::map<std::string, std::string> settings_;
  std::vector<std::byte> source_;  // It and the memory outlive those who move them.
  Remapped memory_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Inference> engine_;
};

TEST_P(Suspend, NothingIsWrittenIntoTheOldMapping) {
  Send(1);
  for (int64_t version = 2; version < Cycles() + 2 && !HasFailure(); ++version) {
    ASSERT_TRUE(engine_->Suspend(In(kPatience)).ok());
    EXPECT_EQ(engine_->version().number, -1);
    EXPECT_EQ(engine_->state(), EngineState::kSuspended);
    memory_.Swap();
    const Status resumed = engine_->Resume();
    ASSERT_TRUE(resumed.ok()) << resumed.ToString();
    Send(version);
    EXPECT_EQ(memory_.Wrong(/*now=*/false, version - 1), 0U) << "what is mapped no more was written";
  }
}

/// Without a word to us: bytes go by address, so they come to what is mapped there now.
TEST_P(Suspend, MemoryThatIsMappedAnewBetweenUpdatesIsTheOneWritten) {
  Send(1);
  for (int64_t version = 2; version < Cycles() + 2 && !HasFailure(); ++version) {
    memory_.Swap();
    Send(version);
    EXPECT_EQ(memory_.Wrong(/*now=*/false, version - 1), 0U) << "what is mapped no more was written";
  }
}

TEST_P(Suspend, APublicationWaitsForTheSleeper) {
  Send(1);
  ASSERT_TRUE(engine_->Suspend(In(kPatience)).ok());
  const auto update = Publish(2);
  EXPECT_EQ(update->Wait(In(0.2)).status().code(), Code::kTimedOut);
  EXPECT_EQ(memory_.Wrong(/*now=*/true, 1), 0U);
  ASSERT_TRUE(engine_->Resume().ok());
  const auto served = engine_->Wait({.run = 1, .number = 1}, In(kPatience));
  ASSERT_TRUE(served.ok()) << served.status().ToString();
  EXPECT_TRUE(update->Wait(In(kPatience)).ok());
  EXPECT_EQ(memory_.Wrong(/*now=*/true, 2), 0U);
}

TEST_P(Suspend, WhatIsIntactIsServedAtOnce) {
  Send(1);
  ASSERT_TRUE(engine_->Suspend(In(kPatience)).ok());
  EXPECT_THAT(engine_->Begin().message(), HasSubstr("resume"));
  ASSERT_TRUE(engine_->Resume(Contents::kIntact).ok());
  EXPECT_EQ(engine_->version().number, 1);
  EXPECT_EQ(engine_->Resume().code(), Code::kInvalidArgument) << "it does not sleep";
  Send(2);
}

TEST_P(Suspend, ASleeperGetsWhatItHasMissedFromItsPeers) {
  Send(1);
  Remapped other;
  const auto peer = Engine("f", other.at());
  const auto both = Publish(2);
  const Version first{.run = 1, .number = 1};
  auto there = std::async([&] { return peer->Wait(first, In(kPatience)).status(); });
  EXPECT_TRUE(engine_->Wait(first, In(kPatience)).ok());
  EXPECT_TRUE(there.get().ok());
  ASSERT_TRUE(both->Wait(In(kPatience)).ok());
  ASSERT_TRUE(engine_->Suspend(In(kPatience)).ok());
  const auto update = Publish(3);
  const auto served = peer->Wait({.run = 1, .number = 2}, In(kPatience));
  ASSERT_TRUE(served.ok()) << served.status().ToString();
  ASSERT_TRUE(update->Wait(In(kPatience)).ok());
  trainer_->Close();
  ASSERT_TRUE(engine_->Resume().ok());
  auto late = engine_->Wait({.run = 1, .number = 2}, In(kPatience));
  if (late.status().code() == Code::kCancelled)  // The trainer's leave is told once.
    late = engine_->Wait({.run = 1, .number = 2}, In(kPatience));
  ASSERT_TRUE(late.ok()) << late.status().ToString();
  EXPECT_EQ(memory_.Wrong(/*now=*/true, 3), 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Scenes, Suspend,
    testing::Values(SuspendScene{"tcp", LandingMode::kInPlace}, SuspendScene{"tcp", LandingMode::kShadow},
                    SuspendScene{"shm", LandingMode::kInPlace}, SuspendScene{"shm", LandingMode::kShadow}),
    [](const auto& scene) {
      return scene.param.transport + (scene.param.landing == LandingMode::kShadow ? "_shadow" : "_in_place");
    });

}  // namespace
}  // namespace weightcast::test
