#include "base/half_open.h"

#include <gtest/gtest.h>

#include <set>

namespace weightcast {
namespace {

TEST(HalfOpen, TheSilentGoFirst) {
  HalfOpen half_open(4);
  EXPECT_TRUE(half_open.empty());
  for (uint64_t number = 1; number <= 4; ++number) half_open.Add(number);
  EXPECT_TRUE(half_open.full());
  for (const uint64_t heard : {1U, 2U, 4U}) half_open.Heard(heard);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(half_open.Victim(), 3U);
  half_open.Remove(3);
  EXPECT_FALSE(half_open.full());
  half_open.Remove(3);
  std::set<uint64_t> victims;
  while (!half_open.empty()) {
    const uint64_t victim = half_open.Victim();
    victims.insert(victim);
    half_open.Remove(victim);
  }
  EXPECT_EQ(victims, (std::set<uint64_t>{1, 2, 4}));
}

TEST(HalfOpen, WhoOpensMostLosesMost) {
  constexpr uint64_t kHonest = 1'000'000;
  HalfOpen half_open(1000);
  half_open.Add(kHonest);
  half_open.Heard(kHonest);
  for (uint64_t number = 0; number < 999; ++number) {
    half_open.Add(number);
    half_open.Heard(number);
  }
  // An honest peer needs one round trip: it outlives a hundred floods of the place's tenth nearly always.
  int survived = 0;
  for (int i = 0; i < 100; ++i) survived += half_open.Victim() != kHonest ? 1 : 0;
  EXPECT_GE(survived, 95);
}

TEST(HalfOpen, LeavesDescriptorsToOthers) {
  EXPECT_GE(HalfOpen::Most(), 16U);
  EXPECT_LE(HalfOpen::Most(), 4096U);
}

}  // namespace
}  // namespace weightcast
