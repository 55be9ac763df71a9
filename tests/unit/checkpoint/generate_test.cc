#include "checkpoint/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/strings.h"

namespace weightcast::checkpoint {
namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kBytes = 4096 + 24;

std::vector<DType> AllDTypes() {
  std::vector<DType> all;
  for (int i = 0; i < kDTypeCount; ++i) all.push_back(static_cast<DType>(i));
  return all;
}

bool IsFloat(DType dtype) {
  return NameOf(dtype).starts_with("F") || NameOf(dtype).starts_with("BF") || dtype == DType::kC64;
}

// How many bytes lie between the lowest bits that every version must change.
size_t StepOf(DType dtype) {
  if (dtype == DType::kC64) return 4;
  return static_cast<size_t>(std::max(8, BitsOf(dtype)) / 8);
}

Bytes Made(std::string_view name, DType dtype, int64_t version, size_t size = kBytes) {
  Bytes bytes(size);
  FillRange(name, dtype, version, 0, bytes);
  return bytes;
}

// Random bytes, but for floats such as a checkpoint has: all patterns, NaN and infinity included.
Bytes Original(unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(kBytes);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

uint64_t At(const Bytes& bytes, size_t offset, size_t size) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + offset, size);
  return value;
}

// Whether an element of a float type is infinite or no number, by the definition of its format.
bool IsFinite(DType dtype, uint64_t bits) {
  switch (dtype) {
    case DType::kF8E5M2:
      return (bits & 0x7C) != 0x7C;
    case DType::kF8E4M3:
      return (bits & 0x7F) != 0x7F;
    case DType::kF8E8M0:
      return bits != 0xFF;
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2FNUZ:
      return bits != 0x80;
    case DType::kF16:
      return (bits & 0x7C00) != 0x7C00;
    case DType::kBF16:
      return (bits & 0x7F80) != 0x7F80;
    case DType::kF32:
    case DType::kC64:
      return (bits & 0x7F800000) != 0x7F800000;
    case DType::kF64:
      return (bits & 0x7FF0000000000000) != 0x7FF0000000000000;
    default:
      return true;
  }
}

class EveryDType : public testing::TestWithParam<DType> {};

TEST_P(EveryDType, EveryElementDiffersBetweenConsecutiveVersions) {
  const size_t step = StepOf(GetParam());
  for (int64_t version = 0; version < 6; ++version) {
    const auto before = Made("layer.weight", GetParam(), version);
    const auto after = Made("layer.weight", GetParam(), version + 1);
    for (size_t i = 0; i < kBytes; i += step)
      ASSERT_NE(At(before, i, step), At(after, i, step)) << version << " " << i;
  }
}

TEST_P(EveryDType, EveryElementOfAChangedCheckpointDiffersBetweenConsecutiveVersions) {
  const size_t step = StepOf(GetParam());
  const auto original = Original(1);
  auto before = original;
  for (int64_t version = 2; version < 8; ++version) {
    auto after = original;
    ChangeRange("layer.weight", GetParam(), version, 0, after);
    for (size_t i = 0; i < kBytes; i += step)
      ASSERT_NE(At(before, i, step), At(after, i, step)) << version << " " << i;
    before = after;
  }
}

TEST_P(EveryDType, FloatsAreAndStayFinite) {
  if (!IsFloat(GetParam())) return;
  const size_t step = StepOf(GetParam());
  const auto original = Original(2);
  size_t finite = 0;
  for (int64_t version = 1; version < 5; ++version) {
    const auto made = Made("w", GetParam(), version);
    auto changed = original;
    ChangeRange("w", GetParam(), version, 0, changed);
    for (size_t i = 0; i < kBytes; i += step) {
      ASSERT_TRUE(IsFinite(GetParam(), At(made, i, step))) << i;
      if (!IsFinite(GetParam(), At(original, i, step))) continue;
      ++finite;
      ASSERT_TRUE(IsFinite(GetParam(), At(changed, i, step))) << i << " version " << version;
    }
  }
  EXPECT_GT(finite, 100u);
}

TEST_P(EveryDType, AnyRangeIsThatPartOfTheWhole) {
  const auto original = Original(3);
  const auto made = Made("w", GetParam(), 7);
  auto changed = original;
  ChangeRange("w", GetParam(), 7, 0, changed);
  for (const size_t offset : {0, 1, 7, 8, 9, 64, 1001})
    for (const size_t size : {0, 1, 5, 7, 8, 9, 16, 63, 777}) {
      Bytes part(size);
      FillRange("w", GetParam(), 7, offset, part);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), made.begin() + offset)) << offset << " " << size;
      part.assign(original.begin() + offset, original.begin() + offset + size);
      ChangeRange("w", GetParam(), 7, offset, part);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), changed.begin() + offset)) << offset << " " << size;
    }
}

TEST_P(EveryDType, DependsOnTheName) { EXPECT_NE(Made("a", GetParam(), 1), Made("b", GetParam(), 1)); }

TEST_P(EveryDType, VersionOneOfACheckpointIsItself) {
  const auto original = Original(4);
  auto changed = original;
  ChangeRange("w", GetParam(), 1, 0, changed);
  EXPECT_EQ(changed, original);
}

INSTANTIATE_TEST_SUITE_P(Generate, EveryDType, testing::ValuesIn(AllDTypes()),
                         [](const auto& dtype) { return std::string(NameOf(dtype.param)); });

// Written down from the formula of the header with Python's integers.
TEST(Generate, MakesTheWrittenFormula) {
  Bytes bytes(20);
  FillRange("wte.weight", DType::kBF16, 3, 0, bytes);
  EXPECT_EQ(At(bytes, 0, 8), 0xBCAFBD413D4FBCE7u);
  EXPECT_EQ(At(bytes, 8, 8), 0xBD013C4B3C41BD99u);
  EXPECT_EQ(At(bytes, 16, 4), 0x3D453D97BCDB3C25u & 0xFFFFFFFFu);
}

TEST(Generate, ChangeGuardsAgainstNaN) {
  const auto changed = [](DType dtype, uint8_t value) {
    Bytes bytes(64, static_cast<std::byte>(value));
    ChangeRange("w", dtype, 2, 0, bytes);
    return bytes;
  };
  const auto has = [](const Bytes& bytes, int value) {
    return std::find(bytes.begin(), bytes.end(), static_cast<std::byte>(value)) != bytes.end();
  };
  // ^ 1 would make NaN of these; ^ 3 gives another finite value.
  EXPECT_TRUE(has(changed(DType::kF8E4M3, 0x7E), 0x3F));
  EXPECT_TRUE(has(changed(DType::kF8E4M3, 0xFE), 0xBF));
  EXPECT_TRUE(has(changed(DType::kF8E8M0, 0xFE), 0xBF));
  EXPECT_TRUE(has(changed(DType::kF8E4M3FNUZ, 0x81), 0xC0));
  EXPECT_FALSE(has(changed(DType::kF8E4M3, 0x7E), 0x7F));
}

TEST(Generate, ValuesLookLikeWeights) {
  Bytes bytes(size_t{4} << 16);
  FillRange("w", DType::kF32, 4, 0, bytes);
  double sum = 0;
  for (size_t i = 0; i < bytes.size(); i += 4) {
    float value = 0;
    std::memcpy(&value, bytes.data() + i, 4);
    ASSERT_GE(std::fabs(value), 1.0f / 128);
    ASSERT_LT(std::fabs(value), 1.0f / 8);
    sum += value;
  }
  EXPECT_LT(std::fabs(sum / (1 << 16)), 0.001);
}

// A box of a tensor of three dimensions and two-byte elements, copied row by row.
Bytes Cut(const Bytes& whole, const Shape& shape, const Box& box) {
  Bytes cut;
  for (int64_t i = 0; i < box.size[0]; ++i)
    for (int64_t j = 0; j < box.size[1]; ++j) {
      const auto row = whole.begin() +
                       (((box.offset[0] + i) * shape[1] + box.offset[1] + j) * shape[2] + box.offset[2]) * 2;
      cut.insert(cut.end(), row, row + box.size[2] * 2);
    }
  return cut;
}

TEST(FillBox, AndChangeBoxMakeTheBoxOfTheWhole) {
  const TensorInfo tensor{"w", DType::kBF16, {6, 5, 8}};
  const auto whole = Made("w", DType::kBF16, 1, 6 * 5 * 8 * 2);
  auto changed_whole = whole;
  ChangeRange("w", DType::kBF16, 4, 0, changed_whole);
  for (const Box& box : {Box{{0, 0, 0}, {6, 5, 8}}, Box{{1, 0, 0}, {3, 5, 8}}, Box{{0, 2, 0}, {6, 2, 8}},
                         Box{{2, 1, 3}, {3, 4, 5}}, Box{{2, 1, 3}, {0, 4, 5}}}) {
    Bytes bytes(Cut(whole, tensor.shape, box).size());
    ASSERT_TRUE(FillBox(tensor, box, 1, bytes).ok());
    EXPECT_EQ(bytes, Cut(whole, tensor.shape, box)) << ToString(box);
    ASSERT_TRUE(ChangeBox(tensor, box, 4, bytes).ok());
    EXPECT_EQ(bytes, Cut(changed_whole, tensor.shape, box)) << ToString(box);
  }
}

TEST(FillBox, RefusesWhatDoesNotFit) {
  const TensorInfo tensor{"w", DType::kF4, {4, 4}};
  Bytes bytes(8);
  EXPECT_TRUE(FillBox(tensor, {{0, 0}, {4, 4}}, 1, bytes).ok());
  EXPECT_EQ(FillBox(tensor, {{1, 0}, {4, 4}}, 1, bytes).code(), Code::kInvalidArgument);
  EXPECT_EQ(FillBox(tensor, {{0, 0}, {2, 4}}, 1, bytes).code(), Code::kOutOfBounds);
  EXPECT_FALSE(FillBox(tensor, {{0, 1}, {4, 2}}, 1, std::span(bytes).first(4)).ok()) << "cuts inside a byte";
}

}  // namespace
}  // namespace weightcast::checkpoint
