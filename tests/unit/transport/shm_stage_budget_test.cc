// What rings of device memory may pin: the first ones are long, and there is something left for the others.
#include <gtest/gtest.h>

#include "transport/shm/stage_budget.h"

namespace weightcast::transport::shm {
namespace {

constexpr uint64_t kMiB = 1U << 20;

TEST(StageBudgetTest, RingsGetShorterAsLessIsLeft) {
  StageBudget budget(64 * kMiB);
  uint64_t taken = 0;
  uint64_t last = kLongestStage;
  size_t rings = 0;
  for (uint64_t length = budget.Take(kLongestStage); length > 0; length = budget.Take(kLongestStage)) {
    EXPECT_TRUE(IsStageLength(length));
    EXPECT_LE(length, last);
    EXPECT_TRUE(rings > 0 || length == kLongestStage);
    last = length;
    taken += length;
    ++rings;
  }
  EXPECT_EQ(taken, 64 * kMiB);
  EXPECT_GE(rings, 12U);
}

TEST(StageBudgetTest, WhatIsGivenBackServesAgain) {
  StageBudget budget(kMiB);
  ASSERT_EQ(budget.Take(kLongestStage), kMiB);
  EXPECT_EQ(budget.Take(kLongestStage), 0U);
  EXPECT_FALSE(budget.TakeAll(1));
  budget.Give(kMiB);
  EXPECT_EQ(budget.Take(kLongestStage), kMiB);
}

TEST(StageBudgetTest, ARingIsNoLongerThanThePeerWants) {
  StageBudget budget(64 * kMiB);
  EXPECT_EQ(budget.Take(2 * kMiB), 2 * kMiB);
  EXPECT_FALSE(budget.TakeAll(63 * kMiB));
  EXPECT_TRUE(budget.TakeAll(62 * kMiB));
}

}  // namespace
}  // namespace weightcast::transport::shm
