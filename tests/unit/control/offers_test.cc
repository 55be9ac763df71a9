#include "control/offers.h"

#include <gtest/gtest.h>

namespace weightcast::control {
namespace {

Worker TrainerOf(int64_t offered, bool waiting) {
  Worker trainer;
  trainer.offered = offered;
  trainer.waiting = waiting;
  return trainer;
}

TEST(Offers, AreCommonOnlyIfAllTrainersOfferTheSame) {
  Offers offers;
  EXPECT_EQ(offers.Common(), -1);
  offers.Add(TrainerOf(-1, false));
  EXPECT_EQ(offers.Common(), -1) << "nothing";
  EXPECT_EQ(offers.Of(-1), 1U);
  offers.Add(TrainerOf(4, true));
  EXPECT_EQ(offers.Common(), -1) << "one of two";
  offers.Remove(TrainerOf(-1, false));
  offers.Add(TrainerOf(4, false));
  EXPECT_EQ(offers.Common(), 4);
  EXPECT_EQ(offers.Of(4), 2U);
  EXPECT_EQ(offers.Of(3), 0U);
  EXPECT_EQ(offers.waiting(), 1U);
}

TEST(Offers, ArePassedIfOneWhoWaitsIsBelowAnother) {
  Offers offers;
  offers.Add(TrainerOf(3, true));
  offers.Add(TrainerOf(-1, false));
  EXPECT_FALSE(offers.AnyPassed());
  offers.Add(TrainerOf(4, true));
  EXPECT_TRUE(offers.AnyPassed());
  offers.Remove(TrainerOf(3, true));
  offers.Add(TrainerOf(3, false));
  EXPECT_FALSE(offers.AnyPassed()) << "it has its answer";
}

TEST(Offers, AreEqualAgainWhenATrainerHasGone) {
  Offers offers;
  offers.Add(TrainerOf(3, true));
  const Offers before = offers;
  offers.Add(TrainerOf(2, true));
  EXPECT_FALSE(offers == before);
  offers.Remove(TrainerOf(2, true));
  EXPECT_TRUE(offers == before);
}

}  // namespace
}  // namespace weightcast::control
