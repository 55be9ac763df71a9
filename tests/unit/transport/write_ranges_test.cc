#include "transport/write_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace weightcast::transport {
namespace {

TEST(WriteRanges, CoverWhatTheirBlocksHoldAndNothingElse) {
  std::mt19937_64 random(7);
  constexpr uint64_t kSize = 400;
  for (int round = 0; round < 300; ++round) {
    std::vector<WriteRanges::Range> all;
    std::vector<std::vector<bool>> open(3, std::vector<bool>(kSize, false));
    for (uint64_t i = random() % 8; i > 0; --i) {
      WriteRanges::Range range{.region = static_cast<uint32_t>(random() % 3),
                               .generation = 1,
                               .offset = random() % 200,
                               .length = random() % 12,
                               .stride = 0,
                               .count = 1 + random() % 8};
      range.stride = range.length + random() % 3 * (random() % 10);
      for (uint64_t block = 0; block < range.count; ++block)
        for (uint64_t byte = 0; byte < range.length; ++byte)
          open[range.region][range.offset + block * range.stride + byte] = true;
      all.push_back(range);
    }
    const WriteRanges ranges(all);
    for (int i = 0; i < 300; ++i) {
      const auto region = static_cast<uint32_t>(random() % 3);
      const uint64_t at = random() % kSize;
      const uint64_t length = random() % std::min<uint64_t>(kSize - at, 30);
      const auto first = open[region].begin() + static_cast<int64_t>(at);
      const bool all_open =
          std::all_of(first, first + static_cast<int64_t>(length), [](bool o) { return o; });
      ASSERT_EQ(ranges.Cover(region, 1, at, length), all_open) << round;
      ASSERT_EQ(ranges.Cover(region, 2, at, length), length == 0) << "another registration";
    }
  }
}

TEST(WriteRanges, NoneOpenNothing) {
  const WriteRanges none({});
  EXPECT_FALSE(none.Cover(1, 1, 0, 1));
  EXPECT_TRUE(none.Cover(1, 1, 0, 0));
}

}  // namespace
}  // namespace weightcast::transport
