#include "base/large_vector.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>

namespace weightcast {
namespace {

TEST(LargeVectorTest, GrowsFromSmallToLargeAndBack) {
  constexpr size_t kMany = 3'000'001;  // 24 MB, not a whole number of huge pages.
  LargeVector<int64_t> values;
  for (size_t i = 0; i < kMany; ++i) values.push_back(static_cast<int64_t>(i));
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}),
            static_cast<int64_t>(kMany) * (kMany - 1) / 2);
  const LargeVector<int64_t> copy = values;
  values.resize(3);
  values.shrink_to_fit();
  EXPECT_EQ(values, (LargeVector<int64_t>{0, 1, 2}));
  EXPECT_EQ(copy.back(), static_cast<int64_t>(kMany) - 1);
}

TEST(LargeVectorTest, LargeOnesBeginAtAHugePage) {
  const LargeVector<int32_t> values(4 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(values.data()) % (2 << 20), 0U);
}

TEST(LargeVectorTest, WhatCannotBeHadIsRefused) {
  LargeAllocator<int64_t> allocator;
  EXPECT_THROW([[maybe_unused]] const auto* p = allocator.allocate(SIZE_MAX / 4), std::bad_alloc);
}

}  // namespace
}  // namespace weightcast
