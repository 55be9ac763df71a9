#include "worker/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "worker/gather.h"

namespace weightcast::worker {
namespace {

/// The nearest value of a format with `fraction` bits and smallest exponent `low`, by exact arithmetic in
/// double.
double Nearest(double value, int fraction, int low, double largest) {
  if (value == 0 || std::isnan(value) || std::isinf(value)) return value;
  const int exponent = std::max(std::ilogb(value), low);
  const double step = std::ldexp(1.0, exponent - fraction);
  const double rounded = std::nearbyint(value / step) * step;  // Ties to even, the default mode.
  return std::fabs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), value)
                                      : rounded;
}

std::vector<float> Samples() {
  std::vector<float> samples;
  std::mt19937 random(3);
  for (int i = 0; i < 200'000; ++i) samples.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    // Every F16 and BF16 value, its neighbours and the ties between.
    for (const uint32_t low : {0U, 1U, 0x0fffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU})
      samples.push_back(std::bit_cast<float>(bits << 16 | low));
    samples.push_back(FromF16(static_cast<uint16_t>(bits)));
    samples.push_back(std::nextafter(samples.back(), 1e30F));
  }
  return samples;
}

TEST(Convert, RoundsToTheNearestBf16) {
  const double largest = FromBf16(0x7f7f);
  for (const float value : Samples()) {
    const float got = FromBf16(ToBf16(value));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(got));
      continue;
    }
    ASSERT_EQ(got, static_cast<float>(Nearest(value, 7, -126, largest))) << value;
    ASSERT_EQ(std::signbit(got), std::signbit(value));
  }
}

TEST(Convert, RoundsToTheNearestF16) {
  for (const float value : Samples()) {
    const float got = FromF16(ToF16(value));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(got));
      continue;
    }
    ASSERT_EQ(got, static_cast<float>(Nearest(value, 10, -14, 65504.0))) << value;
    ASSERT_EQ(std::signbit(got), std::signbit(value));
  }
}

TEST(Convert, WideningIsExactAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (!std::isnan(FromF16(half))) {
      ASSERT_EQ(ToF16(FromF16(half)), half);
    }
    if (!std::isnan(FromBf16(half))) {
      ASSERT_EQ(ToBf16(FromBf16(half)), half);
    }
  }
  EXPECT_EQ(FromF16(0x3c00), 1.0F);
  EXPECT_EQ(FromF16(0x0001), std::ldexp(1.0F, -24));
  EXPECT_EQ(FromF16(0x7bff), 65504.0F);
}

TEST(Convert, NanStaysNanWithItsSign) {
  for (const uint32_t bits : {0x7f800001U, 0xff800001U, 0x7fffffffU, 0xffc12345U}) {
    const auto value = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(FromBf16(ToBf16(value))));
    EXPECT_TRUE(std::isnan(FromF16(ToF16(value))));
    EXPECT_EQ(ToBf16(value) >> 15, bits >> 31);
    EXPECT_EQ(ToF16(value) >> 15, bits >> 31);
  }
}

TEST(Convert, AllPairs) {
  const float value = -1.5F;
  const auto run = [&](DType from, DType to) {
    std::byte source[4];
    std::byte target[4] = {};
    Convert(DType::kF32, reinterpret_cast<const std::byte*>(&value), from, source, 1);
    Convert(from, source, to, target, 1);
    float back = 0;
    Convert(to, target, DType::kF32, reinterpret_cast<std::byte*>(&back), 1);
    return back;
  };
  for (const DType from : {DType::kF32, DType::kF16, DType::kBF16})
    for (const DType to : {DType::kF32, DType::kF16, DType::kBF16}) EXPECT_EQ(run(from, to), value);
}

TEST(Gather, FollowsStridesInRowMajorOrder) {
  // A transposed view: element (i, j) of a [6, 5] shard at i + 6 * j; the shard begins at row 2 of its
  // tensor.
  std::vector<uint16_t> memory(30);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint16_t>(i);
  const GatherSource source{.data = reinterpret_cast<const std::byte*>(memory.data()),
                            .dtype = DType::kU16,
                            .shard = {{2, 0}, {6, 5}},
                            .strides = {1, 6},
                            .box = {{3, 1}, {4, 3}}};
  std::vector<uint16_t> out(12, 0xffff);
  Gather(source, 0, 5, DType::kU16, reinterpret_cast<std::byte*>(out.data()));
  Gather(source, 5, 7, DType::kU16, reinterpret_cast<std::byte*>(out.data() + 5));
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 3; ++j) EXPECT_EQ(out[i * 3 + j], 1 + i + 6 * (1 + j));
}

TEST(Gather, CastsOnTheWay) {
  std::vector<float> memory(64);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  for (const bool dense : {true, false}) {
    const GatherSource source{.data = reinterpret_cast<const std::byte*>(memory.data()),
                              .dtype = DType::kF32,
                              .shard = {{0, 0}, {8, 8}},
                              .strides = {8, 1},
                              .box = dense ? Box{{2, 0}, {4, 8}} : Box{{2, 3}, {4, 4}}};
    const int64_t width = dense ? 8 : 4;
    std::vector<uint16_t> out(static_cast<size_t>(4 * width));
    Gather(source, 0, 4 * width, DType::kBF16, reinterpret_cast<std::byte*>(out.data()));
    for (int64_t i = 0; i < 4 * width; ++i)
      EXPECT_EQ(FromBf16(out[i]), memory[(2 + i / width) * 8 + i % width + (dense ? 0 : 3)]);
  }
}

TEST(Gather, KnowsWhatIsDense) {
  EXPECT_TRUE(IsDense({3, 4}, {4, 1}));
  EXPECT_TRUE(IsDense({3, 1}, {1, 77}));
  EXPECT_TRUE(IsDense({1, 4}, {99, 1}));
  EXPECT_TRUE(IsDense({}, {}));
  EXPECT_FALSE(IsDense({3, 4}, {5, 1}));
  EXPECT_FALSE(IsDense({3, 4}, {1, 3}));
  EXPECT_FALSE(IsDense({3, 4}, {4}));
}

}  // namespace
}  // namespace weightcast::worker
