#include "topology/nic_wish.h"

#include <gtest/gtest.h>

namespace weightcast::topology {
namespace {

TEST(NicWish, AllowsEverythingWhenEmpty) {
  EXPECT_TRUE(NicWish("").everything());
  EXPECT_TRUE(NicWish("").Allows("mlx5_0", 1));
  EXPECT_TRUE(NicWish("^").Allows("mlx5_0", 1));
}

TEST(NicWish, NamesDevicesAndPorts) {
  const NicWish wish("mlx5_0,,mlx5_1:2");
  EXPECT_TRUE(wish.Allows("mlx5_0", 1));
  EXPECT_TRUE(wish.Allows("mlx5_0", 2));
  EXPECT_FALSE(wish.Allows("mlx5_1", 1));
  EXPECT_TRUE(wish.Allows("mlx5_1", 2));
  EXPECT_FALSE(wish.Allows("mlx5_2", 1));
}

TEST(NicWish, LeavesOut) {
  const NicWish wish("^mlx5_0,mlx5_1:2");
  EXPECT_FALSE(wish.Allows("mlx5_0", 1));
  EXPECT_TRUE(wish.Allows("mlx5_1", 1));
  EXPECT_FALSE(wish.Allows("mlx5_1", 2));
  EXPECT_TRUE(wish.Allows("mlx5_2", 1));
}

}  // namespace
}  // namespace weightcast::topology
