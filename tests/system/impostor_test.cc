// A process that has a token of the job, knows who is who, and wants to write into an engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <thread>

#include "control/client.h"
#include "control/token.h"
#include "protocol/identity.h"
#include "system/jobs.h"
#include "weightcast/endpoint.h"

namespace weightcast::test {
namespace {

using testing::HasSubstr;

/// How often each attack is tried; WC_TEST_ATTEMPTS=200 tries harder.
int Attempts() {
  const char* wanted = std::getenv("WC_TEST_ATTEMPTS");
  return wanted == nullptr ? 10 : std::atoi(wanted);
}

class Impostor : public Job, public testing::Test {
 protected:
  void SetUp() override {
    settings_["transport"] = "tcp";
    StartController();
    std::thread other([&] { trainers_[1] = ConnectTrainer(1, 2); });
    trainers_[0] = ConnectTrainer(0, 2);
    other.join();
    engine_ = ConnectEngine("a");
    ASSERT_TRUE(trainers_[0] != nullptr && trainers_[1] != nullptr && engine_ != nullptr);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      weights_.emplace_back(SmallModel(DType::kBF16), Cut::kRows, rank, 2);
      ASSERT_TRUE(trainers_[rank]->Register({.shards = weights_[rank].shards()}).ok());
    }
    ASSERT_TRUE(engine_->Register({.shards = landed_.shards()}, {.landing = LandingMode::kShadow}).ok());
  }
  /// Both trainers publish it, and the engine serves it bit for bit.
  void Update(int64_t version) {
    std::vector<std::shared_ptr<weightcast::Update>> updates;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      weights_[rank].Fill(version);
      auto update = trainers_[rank]->Publish(version);
      ASSERT_TRUE(update.ok()) << update.status().ToString();
      updates.push_back(std::move(*update));
    }
    auto served = engine_->Wait(served_, In(60));
    ASSERT_TRUE(served.ok()) << served.status().ToString();
    served_ = *served;
    for (const auto& update : updates) ASSERT_TRUE(update->Wait(In(60)).ok());
    EXPECT_EQ(landed_.Wrong(version), 0);
  }
  protocol::WorkerView Look(const protocol::WorkerName& name) {
    auto settings = settings_;
    settings["controller"] = controller_->address();
    const auto view = control::GetView(*Settings::From(settings), In(20));
    EXPECT_TRUE(view.ok()) << view.status().ToString();
    for (const auto& worker : view->models.at(0).workers)
      if (worker.name == name) return worker;
    ADD_FAILURE() << "there is no " << protocol::ToString(name);
    return {};
  }
  /// An endpoint that says it is this worker. It has what every member has: the key of all endpoints.
  std::unique_ptr<Endpoint> Pose(const protocol::WorkerView& as) {
    EndpointOptions options;
    options.settings = *Settings::From(settings_);
    options.token = control::LoadToken(options.settings)->text();
    options.self = protocol::IdentityOf(settings_["job"], as.name, as.incarnation);
    auto made = Endpoint::Create(std::move(options));
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return made.ok() ? std::move(*made) : nullptr;
  }

  static constexpr protocol::Role kTrainer = protocol::Role::kTrainer;
  std::unique_ptr<Trainer> trainers_[2];
  std::unique_ptr<Inference> engine_;
  std::vector<Weights> weights_;
  Version served_;
  Weights landed_{SmallModel(DType::kBF16), Cut::kWhole, 0, 1};
};

TEST_F(Impostor, NobodyWritesIntoAnEngineAsAnother) {
  Update(1);
  const auto target = Look({.role = protocol::Role::kInference, .engine = "a", .rank = 0});
  const Identity engine = protocol::IdentityOf(settings_["job"], target.name, target.incarnation);
  // A live trainer, one that says another number of itself, and an engine.
  auto strange = Look({.role = kTrainer, .engine = "", .rank = 1});
  strange.incarnation += 1;
  auto other_engine = target;
  other_engine.name.engine = "b";
  other_engine.incarnation += 1;
  for (const auto& claimed : {Look({.role = kTrainer, .engine = "", .rank = 0}), strange, other_engine}) {
    const auto impostor = Pose(claimed);
    ASSERT_NE(impostor, nullptr);
    for (int i = 0; i < Attempts(); ++i) {
      const Status status = impostor->Connect(target.addresses, engine, In(20)).status();
      ASSERT_EQ(status.code(), Code::kPermission) << i << ": " << status.ToString();
      ASSERT_THAT(status.message(), HasSubstr("does not have the key"));
    }
  }
  Update(2);
}

}  // namespace
}  // namespace weightcast::test
