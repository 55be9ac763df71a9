#include "endpoint/transfers/user_callbacks.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <thread>
#include <vector>

namespace weightcast::endpoint {
namespace {

class NoWork final : public Work {
 public:
  bool Step(bool) override { return false; }
  bool Arm() override { return true; }
  void Disarm() override {}
  [[nodiscard]] bool ArmingIsCostly() const override { return false; }
  void Mask(bool) override {}
  [[nodiscard]] std::optional<TimePoint> NextDeadline() const override { return std::nullopt; }
};

class UserCallbacksTest : public testing::Test {
 protected:
  UserCallbacksTest() { EXPECT_TRUE(progress_->Start(nullptr).ok()); }
  ~UserCallbacksTest() override { progress_->Stop(); }

  void AddThree() {
    progress_->Call([this] {
      for (int i = 0; i < 3; ++i) callbacks_.Later([this, i] { ran_.push_back(i); });
    });
  }
  bool Readable() {
    pollfd one{.fd = callbacks_.descriptor(), .events = POLLIN, .revents = 0};
    return ::poll(&one, 1, 0) == 1;
  }

  NoWork work_;
  const std::unique_ptr<Progress> progress_ = Progress::Create(work_).value();
  UserCallbacks callbacks_{*progress_};
  std::vector<int> ran_;
};

TEST_F(UserCallbacksTest, TheThreadRunsThemIfTheUserDoesNot) {
  AddThree();
  EXPECT_EQ(callbacks_.descriptor(), -1);
  EXPECT_EQ(callbacks_.Run(), 0U);
  EXPECT_TRUE(progress_->Stop());  // After those that wait.
  EXPECT_EQ(ran_, (std::vector<int>{0, 1, 2}));
}

TEST_F(UserCallbacksTest, TheUserRunsThemInOrderWhileTheDescriptorIsReadable) {
  ASSERT_TRUE(callbacks_.GiveToUser().ok());
  EXPECT_FALSE(Readable());
  AddThree();
  EXPECT_TRUE(Readable());
  EXPECT_TRUE(ran_.empty());
  EXPECT_EQ(callbacks_.Run(), 3U);
  EXPECT_EQ(ran_, (std::vector<int>{0, 1, 2}));
  EXPECT_FALSE(Readable());
  EXPECT_EQ(callbacks_.Run(), 0U);
}

TEST_F(UserCallbacksTest, OneRunsAtATimeAndNoThreadWaitsForIt) {
  ASSERT_TRUE(callbacks_.GiveToUser().ok());
  size_t elsewhere = 1;
  progress_->Call([&] {
    callbacks_.Later([&] {
      AddThree();  // For the next Run.
      std::thread([&] { elsewhere = callbacks_.Run(); }).join();
    });
  });
  EXPECT_EQ(callbacks_.Run(), 1U);
  EXPECT_EQ(elsewhere, 0U);
  EXPECT_TRUE(ran_.empty());
  EXPECT_TRUE(Readable());
  EXPECT_EQ(callbacks_.Run(), 3U);
}

TEST_F(UserCallbacksTest, WhatNobodyHasRunIsRunAtTheEnd) {
  ASSERT_TRUE(callbacks_.GiveToUser().ok());
  AddThree();
  EXPECT_TRUE(progress_->Stop());
  EXPECT_TRUE(ran_.empty());
  callbacks_.RunLeft();
  EXPECT_EQ(ran_, (std::vector<int>{0, 1, 2}));
}

}  // namespace
}  // namespace weightcast::endpoint
