#include "endpoint/transfers/use_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace weightcast::endpoint {
namespace {

TEST(UseTable, FindsWhatIsThereAndCountsIt) {
  UseTable<int> table;
  int thing = 7;
  EXPECT_EQ(table.Use(0).thing, nullptr);
  EXPECT_EQ(table.Use(UINT32_MAX).thing, nullptr) << "no room was ever made for it";
  table.Set(0, &thing);
  EXPECT_EQ(table.Use(0).thing, &thing);
  EXPECT_EQ(table.Use(0).thing, &thing);
  EXPECT_EQ(table.Use(1).thing, nullptr);
  EXPECT_FALSE(table.Remove(0)) << "two use it";
  EXPECT_EQ(table.Use(0).thing, nullptr) << "nobody begins to use it any more";
  EXPECT_FALSE(table.Drop(0));
  EXPECT_TRUE(table.Drop(0)) << "the last one is told";
  int other = 8;
  table.Set(0, &other);
  EXPECT_EQ(table.Use(0).thing, &other);
  EXPECT_FALSE(table.Drop(0));
  EXPECT_TRUE(table.Remove(0)) << "nobody uses it";
}

TEST(UseTable, GrowsWithoutMovingAnything) {
  UseTable<int> table;
  std::vector<int> things(10'000);
  for (uint32_t i = 0; i < things.size(); ++i) table.Set(i, &things[i]);
  for (uint32_t i = 0; i < things.size(); ++i) ASSERT_EQ(table.Use(i).thing, &things[i]);
}

/// Each Set is told to be unused exactly once, by whomever, and nobody holds it then.
TEST(UseTable, ItIsUnusedOnceHoweverManyLook) {
  UseTable<std::atomic<int>> table;
  std::atomic<int> holders = 0;
  std::atomic<int> told = 0;
  std::atomic<bool> stop = false;
  const auto on_unused = [&] {
    EXPECT_EQ(holders.load(), 0);
    ++told;
  };
  std::vector<std::thread> users;
  for (int i = 0; i < 3; ++i) {
    users.emplace_back([&] {
      while (!stop) {
        const auto found = table.Use(5);
        if (found.became_unused) on_unused();
        if (found.thing == nullptr) {
          std::this_thread::yield();
          continue;
        }
        found.thing->fetch_add(1);
        found.thing->fetch_sub(1);
        if (table.Drop(5)) on_unused();
      }
    });
  }
  constexpr int kRounds = 3000;
  for (int i = 1; i <= kRounds; ++i) {
    table.Set(5, &holders);
    if (i % 3 == 0) std::this_thread::yield();
    if (table.Remove(5)) on_unused();
    while (told < i) std::this_thread::yield();
  }
  stop = true;
  for (auto& user : users) user.join();
  EXPECT_EQ(told, kRounds);
}

}  // namespace
}  // namespace weightcast::endpoint
