#include "worker/gather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace weightcast::worker {
namespace {

/// The distance of each element of the box, in row-major order.
std::vector<int64_t> Distances(const GatherSource& source) {
  std::vector<int64_t> distances{0};
  for (size_t d = 0; d < source.strides.size(); ++d) {
    std::vector<int64_t> longer;
    for (const int64_t before : distances)
      for (int64_t i = 0; i < source.box.size[d]; ++i)
        longer.push_back(before + (source.box.offset[d] - source.shard.offset[d] + i) * source.strides[d]);
    distances = std::move(longer);
  }
  return distances;
}

TEST(Gather, ReachHoldsAllThatIsRead) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    GatherSource source{.data = nullptr, .dtype = DType::kF32, .shard = {}, .strides = {}, .box = {}};
    for (int64_t d = pick(0, 4); d > 0; --d) {
      const int64_t begin = pick(0, 3);
      const int64_t offset = begin + pick(0, 2);
      const int64_t size = pick(1, 5);
      source.shard.offset.push_back(begin);
      source.shard.size.push_back(offset - begin + size + pick(0, 2));
      source.box.offset.push_back(offset);
      source.box.size.push_back(size);
      source.strides.push_back(pick(-9, 40));
    }
    if (pick(0, 1) == 0) source.strides = DenseStrides(source.shard.size);
    const auto distances = Distances(source);
    const auto all = static_cast<int64_t>(distances.size());
    const int64_t first = pick(0, all - 1);
    const int64_t count = pick(1, all - first);
    const Reach reach = ReachOf(source, first, count);
    const auto read = distances.begin() + first;
    const auto [least, greatest] = std::minmax_element(read, read + count);
    EXPECT_LE(reach.least, *least);
    EXPECT_GE(reach.greatest, *greatest);
    // No more than the box has.
    EXPECT_GE(reach.least, *std::ranges::min_element(distances));
    EXPECT_LE(reach.greatest, *std::ranges::max_element(distances));
    if (count == all) {
      EXPECT_EQ(reach.least, *least);
      EXPECT_EQ(reach.greatest, *greatest);
    }
  }
}

}  // namespace
}  // namespace weightcast::worker
