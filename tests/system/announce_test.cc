// Versions that are announced before their bytes are there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "system/jobs.h"
#include "system/waiting_engine.h"

namespace weightcast::test {
namespace {

using testing::HasSubstr;

/// Two trainers that hold rows, and an engine that holds everything.
class AnnounceTest : public Job, public testing::TestWithParam<LandingMode> {
 protected:
  void SetUp() override {
    StartController();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      trainers_.push_back(ConnectTrainer(rank, 2));
      rows_.emplace_back(SmallModel(DType::kF32), Cut::kRows, rank, 2);
      ASSERT_TRUE(trainers_[rank]);
      ASSERT_TRUE(trainers_[rank]->Register({.shards = rows_[rank].shards()}).ok());
    }
    engine_ = ConnectEngine("e");
    ASSERT_TRUE(engine_);
    ASSERT_TRUE(engine_->Register({.shards = landed_.shards()}, {.landing = GetParam()}).ok());
  }
  std::shared_ptr<Update> Announce(uint32_t rank, int64_t number) {
    auto update = trainers_[rank]->Announce(number);
    EXPECT_TRUE(update.ok()) << update.status().ToString();
    return update.ok() ? *update : nullptr;
  }
  std::shared_ptr<Update> Publish(uint32_t rank, int64_t number) {
    auto update = trainers_[rank]->Publish(number);
    EXPECT_TRUE(update.ok()) << update.status().ToString();
    return update.ok() ? *update : nullptr;
  }
  void ExpectServed(int64_t number, std::future<Result<Version>> waiting) {
    const auto served = waiting.get();
    ASSERT_TRUE(served.ok()) << served.status().ToString();
    EXPECT_EQ(served->number, number);
    EXPECT_EQ(landed_.Wrong(number), 0);
  }

  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::unique_ptr<Inference> engine_;
  std::vector<Weights> rows_;
  Weights landed_{SmallModel(DType::kF32), Cut::kWhole, 0, 1};
};

TEST_P(AnnounceTest, NothingIsReadBeforeItIsPublished) {
  for (int64_t number = 1; number <= 3; ++number) {
    const auto announced = Announce(0, number);
    rows_[1].Fill(number);
    const auto other = Publish(1, number);
    ASSERT_TRUE(announced && other);
    auto waiting = WaitInThread(*engine_);
    EXPECT_TRUE(StillWaits(waiting));
    rows_[0].Fill(number);
    EXPECT_EQ(Publish(0, number), announced);
    ExpectServed(number, std::move(waiting));
    EXPECT_TRUE(announced->Wait(In(60)).ok());
    EXPECT_TRUE(other->Wait(In(60)).ok());
  }
}

TEST_P(AnnounceTest, WhatItsPublishMayNotSay) {
  const auto announced = Announce(0, 5);
  ASSERT_TRUE(announced);
  EXPECT_EQ(Announce(0, 5), announced) << "said twice";
  for (const auto& refused : {trainers_[0]->Publish(6), trainers_[0]->Announce(6)}) {
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(refused.status().message(), HasSubstr("version 5 is announced; publish it, or cancel it"));
  }
  for (const auto& refused :
       {trainers_[0]->Publish(5, Hold::kUntilNext), trainers_[0]->Publish(5, Hold::kUntilReady, "a label")}) {
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(refused.status().message(), HasSubstr("were given when it was announced"));
  }
  EXPECT_EQ(Publish(0, 5), announced);
}

TEST_P(AnnounceTest, ACancelledOneMakesRoomForAnotherNumber) {
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const auto announced = Announce(rank, 1);
    ASSERT_TRUE(announced);
    if (rank == 0) continue;
    auto waiting = WaitInThread(*engine_);
    EXPECT_TRUE(StillWaits(waiting));
    announced->Cancel();
    EXPECT_FALSE(announced->Wait(In(60)).ok());
    waiting.wait();
  }
  const auto left = Announce(0, 1);
  ASSERT_TRUE(left);
  EXPECT_FALSE(left->Wait(In(60)).ok()) << "the update was everybody's";
  left->Cancel();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    rows_[rank].Fill(2);
    ASSERT_TRUE(Publish(rank, 2));
  }
  ExpectServed(2, WaitInThread(*engine_));
}

TEST_P(AnnounceTest, CloseWaitsForNoPublish) {
  const auto announced = Announce(0, 1);
  ASSERT_TRUE(announced);
  ASSERT_TRUE(Publish(1, 1));
  auto waiting = WaitInThread(*engine_);
  EXPECT_TRUE(StillWaits(waiting));
  trainers_[0]->Close();
  EXPECT_FALSE(announced->Wait(In(60)).ok());
  EXPECT_FALSE(waiting.get().ok());
}

INSTANTIATE_TEST_SUITE_P(Landings, AnnounceTest, testing::Values(LandingMode::kInPlace, LandingMode::kShadow),
                         [](const auto& each) {
                           return each.param == LandingMode::kInPlace ? "InPlace" : "Shadow";
                         });

}  // namespace
}  // namespace weightcast::test
