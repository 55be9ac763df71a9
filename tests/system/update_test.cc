#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/strings.h"
#include "system/jobs.h"
#include "weightcast/worker.h"
#include "weights.h"

// Whole updates: a controller, trainers and engines as threads of this process.

namespace weightcast::test {
namespace {

using testing::HasSubstr;

struct UpdateScene {
  std::string name;
  std::string transport;
  LandingMode landing = LandingMode::kInPlace;
  Cut trainer_cut = Cut::kWhole;
  uint32_t engine_ranks = 1;
  DType trainer_dtype = DType::kBF16;
  bool checksum = false;
  bool compare = false;
  bool tables = false;
  int64_t versions = 3;
};

void PrintTo(const UpdateScene& scene, std::ostream* out) { *out << scene.name; }

class Update : public Job, public testing::TestWithParam<UpdateScene> {
 protected:
  void SetUp() override { settings_["min_engines"] = "2"; }
};

TEST_P(Update, EveryByteOfEveryVersionArrives) {
  const UpdateScene& scene = GetParam();
  settings_["transport"] = scene.transport;
  if (scene.checksum) settings_["checksum"] = "1";
  if (scene.compare) settings_["compare"] = "1";
  if (scene.trainer_dtype != DType::kBF16) settings_["staging"] = "16M";
  const auto folder = std::filesystem::temp_directory_path() / settings_["job"];
  if (scene.tables) {
    std::filesystem::create_directory(folder);
    settings_["tables"] = folder.string();
  }
  StartController();
  ASSERT_FALSE(HasFatalFailure());
  constexpr uint32_t kTrainers = 2;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kTrainers; ++rank) {
    threads.emplace_back([&, rank] {
      auto trainer = Trainer::Connect(Options(rank, kTrainers));
      ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
      Weights weights(SmallModel(scene.trainer_dtype), scene.trainer_cut, rank, kTrainers);
      ASSERT_TRUE((*trainer)->Register({.shards = weights.shards()}).ok());
      uint64_t bytes = 0;
      for (int64_t version = 1; version <= scene.versions; ++version) {
        weights.Fill(version);
        auto update = (*trainer)->Publish(version);
        ASSERT_TRUE(update.ok()) << update.status().ToString();
        const Status free = (*update)->WaitSources(In(60));
        ASSERT_TRUE(free.ok()) << free.ToString();
        auto stats = (*update)->Wait(In(60));
        ASSERT_TRUE(stats.ok()) << stats.status().ToString();
        EXPECT_EQ(stats->version.number, version);
        EXPECT_EQ(stats->engines.size(), 2U);
        EXPECT_EQ(stats->receivers.size(), 2 * scene.engine_ranks);
        EXPECT_EQ(stats->senders.size(), kTrainers);
        for (const auto& receiver : stats->receivers) EXPECT_EQ(receiver.compared > 0, scene.compare);
        uint64_t sent = 0;
        for (const auto& sender : stats->senders) sent += sender.bytes;
        EXPECT_EQ(sent, stats->bytes);
        bytes = stats->bytes;
        EXPECT_FALSE(version == 1 && (*trainer)->ConnectionMap().empty());
      }
      EXPECT_GT(bytes, 0U);
      (*trainer)->Close();
    });
  }
  for (const char* engine : {"a", "b"}) {
    for (uint32_t rank = 0; rank < scene.engine_ranks; ++rank) {
      threads.emplace_back([&, engine, rank] {
        auto inference = Inference::Connect(Options(rank, scene.engine_ranks, engine));
        ASSERT_TRUE(inference.ok()) << inference.status().ToString();
        Weights weights(SmallModel(DType::kBF16), Cut::kColumns, rank, scene.engine_ranks);
        const Status registered =
            (*inference)->Register({.shards = weights.shards()}, {.landing = scene.landing});
        ASSERT_TRUE(registered.ok()) << registered.ToString();
        EXPECT_EQ((*inference)->version().number, -1);
        Version last;
        while (last.number < scene.versions) {
          auto version = (*inference)->Wait(last, In(60));
          ASSERT_TRUE(version.ok()) << version.status().ToString();
          EXPECT_EQ(version->number, last.number < 0 ? 1 : last.number + 1);
          EXPECT_EQ((*inference)->version(), *version);
          EXPECT_EQ((*inference)->state(), EngineState::kServing);
          EXPECT_EQ(weights.Wrong(version->number), 0);
          last = *version;
        }
        for (const std::string& line : (*inference)->ConnectionMap())
          EXPECT_THAT(line, HasSubstr(scene.transport));
        (*inference)->Close();
      });
    }
  }
  for (auto& thread : threads) thread.join();
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(
    All, Update,
    testing::Values(UpdateScene{.name = "TcpInPlaceDdp", .transport = "tcp"},
                    UpdateScene{.name = "ShmShadowDdp", .transport = "shm", .landing = LandingMode::kShadow},
                    UpdateScene{.name = "ShmInPlaceFsdpToTwoRanks",
                                .transport = "shm",
                                .trainer_cut = Cut::kRows,
                                .engine_ranks = 2},
                    UpdateScene{.name = "TcpShadowFsdpToTwoRanks",
                                .transport = "tcp",
                                .landing = LandingMode::kShadow,
                                .trainer_cut = Cut::kRows,
                                .engine_ranks = 2},
                    UpdateScene{.name = "CastFromF32",
                                .transport = "",
                                .trainer_cut = Cut::kRows,
                                .trainer_dtype = DType::kF32},
                    UpdateScene{.name = "ChecksumsAndTablesInAFolder",
                                .transport = "tcp",
                                .landing = LandingMode::kShadow,
                                .trainer_cut = Cut::kColumns,
                                .engine_ranks = 2,
                                .checksum = true,
                                .tables = true},
                    UpdateScene{.name = "ComparedShmInPlaceToTwoRanks",
                                .transport = "shm",
                                .trainer_cut = Cut::kRows,
                                .engine_ranks = 2,
                                .compare = true,
                                .versions = 20},
                    UpdateScene{.name = "ComparedTcpShadowWithChecksums",
                                .transport = "tcp",
                                .landing = LandingMode::kShadow,
                                .trainer_cut = Cut::kColumns,
                                .checksum = true,
                                .compare = true},
                    UpdateScene{.name = "ComparedAfterACast",
                                .transport = "",
                                .landing = LandingMode::kShadow,
                                .trainer_cut = Cut::kRows,
                                .engine_ranks = 2,
                                .trainer_dtype = DType::kF32,
                                .compare = true},
                    UpdateScene{.name = "AHundredOverTcp",
                                .transport = "tcp",
                                .trainer_cut = Cut::kRows,
                                .engine_ranks = 2,
                                .versions = 100},
                    UpdateScene{.name = "AHundredOverShm",
                                .transport = "shm",
                                .landing = LandingMode::kShadow,
                                .trainer_cut = Cut::kRows,
                                .engine_ranks = 2,
                                .versions = 100}),
    [](const auto& scene) { return scene.param.name; });

/// One trainer and one engine of one rank, each in the test's own hands.
class Phases : public Update {
 protected:
  void SetUp() override {
    Update::SetUp();
    settings_["min_engines"] = "1";
    StartController();
    trainer_ = ConnectTrainer();
    inference_ = ConnectEngine("e");
    ASSERT_TRUE(trainer_ && inference_);
    ASSERT_TRUE(trainer_->Register({.shards = source_.shards()}).ok());
  }
  std::shared_ptr<weightcast::Update> Publish(int64_t version) {
    source_.Fill(version);
    auto update = trainer_->Publish(version);
    EXPECT_TRUE(update.ok()) << update.status().ToString();
    return *update;
  }

  Weights source_{SmallModel(DType::kU64), Cut::kWhole, 0, 1};
  Weights sink_{SmallModel(DType::kU64), Cut::kWhole, 0, 1};
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Inference> inference_;
};

TEST_F(Phases, OneByOneInPlace) {
  ASSERT_TRUE(inference_->Register({.shards = sink_.shards()}, {.landing = LandingMode::kInPlace}).ok());
  sink_.Fill(0);
  auto update = Publish(1);
  EXPECT_EQ(update->WaitSources(In(0.3)).code(), Code::kTimedOut);
  EXPECT_EQ(sink_.Wrong(0), 0) << "written before the engine paused";
  ASSERT_TRUE(inference_->Begin().ok());
  EXPECT_EQ(inference_->Begin().code(), Code::kInvalidArgument);
  auto received = inference_->Receive(In(30));
  ASSERT_TRUE(received.ok()) << received.status().ToString();
  EXPECT_EQ(received->number, 1);
  EXPECT_EQ(sink_.Wrong(1), 0);
  EXPECT_EQ(inference_->version().number, -1) << "switched, not yet serving";
  EXPECT_TRUE(update->WaitSources(In(10)).ok());
  EXPECT_EQ(update->Wait(In(0.1)).status().code(), Code::kTimedOut);
  ASSERT_TRUE(inference_->Finish(In(10)).ok());
  EXPECT_EQ(inference_->version().number, 1);
  EXPECT_TRUE(update->Wait(In(10)).ok());
  EXPECT_THAT(inference_->Describe(), testing::Contains("scale: in_place"));
}

TEST_F(Phases, ShadowIsReadyBeforeThePause) {
  ASSERT_TRUE(inference_->Register({.shards = sink_.shards()}, {.landing = LandingMode::kShadow}).ok());
  auto first = Publish(1);
  ASSERT_TRUE(inference_->Wait({}, In(30)).ok());
  ASSERT_TRUE(first->Wait(In(10)).ok());
  auto second = Publish(2);
  EXPECT_TRUE(second->WaitSources(In(10)).ok()) << "bytes land while the engine serves";
  EXPECT_EQ(inference_->version().number, 1);
  EXPECT_EQ(sink_.Wrong(1), 0);
  auto version = inference_->Wait({1, 1}, In(10));
  ASSERT_TRUE(version.ok()) << version.status().ToString();
  EXPECT_EQ(version->number, 2);
  EXPECT_EQ(sink_.Wrong(2), 0);
}

TEST_F(Phases, CancelledUpdateKeepsTheOldVersion) {
  ASSERT_TRUE(inference_->Register({.shards = sink_.shards()}, {.landing = LandingMode::kShadow}).ok());
  auto first = Publish(1);
  const auto taken = inference_->Wait({}, In(30));
  ASSERT_TRUE(taken.ok()) << taken.status().ToString();
  ASSERT_TRUE(first->Wait(In(10)).ok());
  Version served = *taken;
  int64_t number = 1;
  Status outcome;
  do {
    auto late = Publish(++number);
    late->Cancel();
    outcome = late->Wait(In(1)).status();
    if (outcome.code() == Code::kCancelled) break;
    // It had been told to commit before it was cancelled: the engine takes it.
    const auto later = inference_->Wait(served, In(30));
    ASSERT_TRUE(later.ok()) << later.status().ToString();
    served = *later;
  } while (number < 20);
  EXPECT_EQ(outcome.code(), Code::kCancelled) << outcome.ToString();
  EXPECT_EQ(inference_->version(), served);
  EXPECT_EQ(sink_.Wrong(served.number), 0);
  auto next = Publish(number + 1);
  auto version = inference_->Wait(served, In(20));
  ASSERT_TRUE(version.ok()) << version.status().ToString();
  EXPECT_EQ(version->number, number + 1);
  EXPECT_EQ(sink_.Wrong(number + 1), 0);
}

TEST_F(Phases, AbortedInPlaceUpdateIsFailedUntilTheNext) {
  ASSERT_TRUE(inference_->Register({.shards = sink_.shards()}, {.landing = LandingMode::kInPlace}).ok());
  auto first = Publish(1);
  ASSERT_TRUE(inference_->Begin().ok());
  ASSERT_TRUE(inference_->Receive(In(30)).ok());
  ASSERT_TRUE(inference_->Abort().ok());
  EXPECT_EQ(inference_->state(), EngineState::kFailed);
  EXPECT_EQ(inference_->version().number, -1);
  const auto outcome = first->Wait(In(10));
  EXPECT_FALSE(outcome.ok());
  EXPECT_THAT(outcome.status().message(), HasSubstr("engine e"));
  auto second = Publish(2);
  auto version = inference_->Wait({}, In(30));
  ASSERT_TRUE(version.ok()) << version.status().ToString();
  EXPECT_EQ(version->number, 2);
  EXPECT_EQ(sink_.Wrong(2), 0);
  EXPECT_TRUE(second->Wait(In(10)).ok());
}

TEST_F(Phases, RegisteringAnewMovesTheLandingPlace) {
  ASSERT_TRUE(inference_->Register({.shards = sink_.shards()}, {.landing = LandingMode::kInPlace}).ok());
  auto first = Publish(1);
  ASSERT_TRUE(inference_->Wait({}, In(30)).ok());
  ASSERT_TRUE(first->Wait(In(10)).ok());
  Weights moved{SmallModel(DType::kU64), Cut::kWhole, 0, 1};
  ASSERT_TRUE(inference_->Register({.shards = moved.shards()}, {.landing = LandingMode::kShadow}).ok());
  auto second = Publish(2);
  auto version = inference_->Wait({1, 1}, In(30));
  ASSERT_TRUE(version.ok()) << version.status().ToString();
  EXPECT_EQ(moved.Wrong(2), 0);
  EXPECT_EQ(sink_.Wrong(1), 0) << "the old place was written";
}

TEST_F(Phases, CloseEndsTheCallOfAnotherThread) {
  ASSERT_TRUE(inference_->Register({.shards = sink_.shards()}, {.landing = LandingMode::kShadow}).ok());
  std::thread waiter([&] {
    Status outcome(Code::kInvalidArgument, "");
    // It may find the other thread between Begin and Abort.
    while (outcome.code() == Code::kInvalidArgument) outcome = inference_->Wait({}, In(60)).status();
    EXPECT_EQ(outcome.code(), Code::kCancelled);
  });
  while (inference_->Begin().code() != Code::kInvalidArgument) {
    // The waiter was not inside yet, but may be at any moment, to be turned away.
    while (inference_->Abort().code() == Code::kInvalidArgument) std::this_thread::yield();
  }
  inference_->Close();
  waiter.join();
  EXPECT_EQ(inference_->Begin().code(), Code::kCancelled);
}

TEST_F(Phases, ClosedTrainerEndsItsUpdates) {
  auto update = Publish(1);
  trainer_->Close();
  EXPECT_EQ(update->Wait(In(10)).status().code(), Code::kCancelled);
  EXPECT_EQ(update->WaitSources(In(10)).code(), Code::kCancelled);
  EXPECT_EQ(trainer_->Publish(2).status().code(), Code::kCancelled);
  update->Cancel();
}

TEST_F(Phases, WhoLeavesIsNamed) {
  ASSERT_TRUE(inference_->Register({.shards = sink_.shards()}, {.landing = LandingMode::kShadow}).ok());
  auto first = Publish(1);
  ASSERT_TRUE(inference_->Wait({}, In(30)).ok());
  ASSERT_TRUE(first->Wait(In(10)).ok());
  trainer_->Close();
  const auto version = inference_->Wait({1, 1}, In(20));
  EXPECT_FALSE(version.ok());
  EXPECT_THAT(version.status().message(), HasSubstr("trainer 0"));
  EXPECT_EQ(inference_->version().number, 1) << "the old version is served on";
}

TEST_F(Phases, UnreachableControllerIsNamed) {
  WorkerOptions options = Options(0, 1);
  options.controller = "127.0.0.1:1";
  options.settings["join_timeout"] = "1";
  const auto trainer = Trainer::Connect(options);
  ASSERT_FALSE(trainer.ok());
  EXPECT_THAT(trainer.status().message(), HasSubstr("127.0.0.1:1"));
}

TEST_F(Phases, RankTakenOrOutOfRangeIsRefused) {
  const auto taken = Trainer::Connect(Options(0, 1));
  ASSERT_FALSE(taken.ok());
  EXPECT_THAT(taken.status().message(), HasSubstr("trainer 0"));
  const auto outside = Trainer::Connect(Options(1, 1));
  ASSERT_FALSE(outside.ok());
  EXPECT_EQ(outside.status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace weightcast::test
