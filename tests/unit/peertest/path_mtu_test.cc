#include "peertest/path_mtu.h"

#include <gtest/gtest.h>

namespace weightcast::peertest {
namespace {

TEST(PathMtu, IsFoundWhereverThePathEnds) {
  for (int64_t limit = 576; limit <= 9000; limit += 13) {
    int asked = 0;
    const int64_t found = LargestThatPasses(576, 9000, 4, [&](int64_t size) {
      ++asked;
      return size <= limit;
    });
    EXPECT_LE(found, limit);
    EXPECT_GT(found + 4, limit) << "of " << limit;
    EXPECT_LE(asked, 16);
  }
}

TEST(PathMtu, OfAPathThatTakesAllIsOneQuestion) {
  int asked = 0;
  EXPECT_EQ(LargestThatPasses(576, 1500, 4, [&](int64_t) { return ++asked > 0; }), 1500);
  EXPECT_EQ(asked, 1);
}

TEST(PathMtu, OfAPathThatTakesNothingIsZero) {
  EXPECT_EQ(LargestThatPasses(576, 1500, 4, [](int64_t) { return false; }), 0);
  EXPECT_EQ(LargestThatPasses(1500, 576, 4, [](int64_t) { return true; }), 0);
}

}  // namespace
}  // namespace weightcast::peertest
