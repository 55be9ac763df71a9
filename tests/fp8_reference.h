#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weightcast/tensor.h"

/// Block FP8 worked out a second time, element by element, by the definition in docs/kernels.md.
namespace weightcast::test {

/// The E4M3 that is nearest, by its list of values; of two the even one.
inline uint8_t NearestE4m3(float value) {
  static const std::vector<double> kValues = [] {
    std::vector<double> values;
    for (int code = 0; code < 0x7f; ++code) {
      const int exponent = code >> 3;
      const double mantissa = code & 7;
      values.push_back(exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
    }
    return values;
  }();
  if (std::isnan(value)) return 0x7f;
  const double magnitude = std::abs(static_cast<double>(value));
  const auto above = std::ranges::lower_bound(kValues, magnitude);
  auto code = static_cast<int>(std::min(above, kValues.end() - 1) - kValues.begin());
  if (above != kValues.end() && code > 0) {
    const double up = kValues[static_cast<size_t>(code)] - magnitude;
    const double down = magnitude - kValues[static_cast<size_t>(code) - 1];
    if (down < up || (down == up && code % 2 != 0)) --code;
  }
  return static_cast<uint8_t>(code | (std::signbit(value) ? 0x80 : 0));
}

/// A matrix of F32, BF16 or F16 with random bytes that are like weights, and what becomes of it.
class Fp8Tensor {
 public:
  Fp8Tensor(int64_t rows, int64_t columns, DType dtype, uint32_t seed)
      : rows_(rows), columns_(columns), dtype_(dtype) {
    std::mt19937 random(seed);
    bytes_.resize(static_cast<size_t>(rows * columns * element()));
    for (int64_t i = 0; i < rows * columns; ++i) {
      const double part = static_cast<double>(random()) / 4294967296.0 - 0.5;
      Set(0, i, static_cast<float>(std::ldexp(part, static_cast<int>(random() % 14) - 9)));
    }
    // An empty block, a subnormal, and what is not a number.
    for (int64_t i = 0; i < std::min<int64_t>(rows, 128); ++i)
      for (int64_t j = 0; j < std::min<int64_t>(columns, 128) && seed % 3 == 0; ++j) Set(i, j, 0.0F);
    if (seed % 4 == 1) Set(rows - 1, columns - 1, INFINITY);
    if (seed % 4 == 2) Set(rows - 1, columns - 1, NAN);
    Quantise();
  }

  [[nodiscard]] Shape shape() const { return {rows_, columns_}; }
  [[nodiscard]] Shape scales_shape() const { return {(rows_ + 127) / 128, Across()}; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] int64_t element() const { return BitsOf(dtype_) / 8; }

  /// A box of the source with these strides, in elements, from the first byte on.
  [[nodiscard]] std::vector<std::byte> Source(const Box& box, int64_t row_stride, int64_t stride) const {
    const auto span = static_cast<size_t>((box.size[0] - 1) * row_stride + (box.size[1] - 1) * stride + 1);
    std::vector<std::byte> out(span * static_cast<size_t>(element()));
    for (int64_t r = 0; r < box.size[0]; ++r)
      for (int64_t c = 0; c < box.size[1]; ++c)
        std::memcpy(out.data() + (r * row_stride + c * stride) * element(),
                    bytes_.data() + ((box.offset[0] + r) * columns_ + box.offset[1] + c) * element(),
                    static_cast<size_t>(element()));
    return out;
  }
  [[nodiscard]] std::vector<std::byte> Values(const Box& box) const {
    return Cut(std::as_bytes(std::span(values_)), columns_, 1, box);
  }
  [[nodiscard]] std::vector<std::byte> Scales(const Box& box) const {
    return Cut(std::as_bytes(std::span(scales_)), Across(), sizeof(float), box);
  }

 private:
  [[nodiscard]] int64_t Across() const { return (columns_ + 127) / 128; }
  void Set(int64_t row, int64_t column, float value) {
    std::byte* at = bytes_.data() + (row * columns_ + column) * element();
    if (dtype_ == DType::kF32) std::memcpy(at, &value, 4);
    const auto half = static_cast<_Float16>(value);
    if (dtype_ == DType::kF16) std::memcpy(at, &half, 2);
    const auto upper = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    if (dtype_ == DType::kBF16) std::memcpy(at, &upper, 2);
  }
  [[nodiscard]] float Get(int64_t row, int64_t column) const {
    const std::byte* at = bytes_.data() + (row * columns_ + column) * element();
    if (dtype_ == DType::kF16) {
      _Float16 half = 0;
      std::memcpy(&half, at, 2);
      return static_cast<float>(half);
    }
    uint32_t bits = 0;  // Of BF16 the upper half; of a little-endian F32 all.
    std::memcpy(reinterpret_cast<std::byte*>(&bits) + (dtype_ == DType::kBF16 ? 2 : 0), at,
                static_cast<size_t>(element()));
    return std::bit_cast<float>(bits);
  }
  void Quantise() {
    values_.resize(static_cast<size_t>(rows_ * columns_));
    for (int64_t row = 0; row < rows_; row += 128)
      for (int64_t column = 0; column < columns_; column += 128) QuantiseBlock(row, column);
  }
  void QuantiseBlock(int64_t row, int64_t column) {
    const int64_t rows = std::min<int64_t>(128, rows_ - row);
    const int64_t columns = std::min<int64_t>(128, columns_ - column);
    float amax = 0x1p-100F;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const float value = std::abs(Get(row + r, column + c));
        if (std::isnan(value) || (!std::isnan(amax) && value > amax)) amax = value;
      }
    }
    const float inverse = 448.0F / amax;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        values_[static_cast<size_t>((row + r) * columns_ + column + c)] =
            NearestE4m3(Get(row + r, column + c) * inverse);
    scales_.push_back(std::isnan(amax) ? std::bit_cast<float>(0x7fc00000) : amax / 448.0F);
  }
  static std::vector<std::byte> Cut(std::span<const std::byte> matrix, int64_t columns, int64_t element,
                                    const Box& box) {
    std::vector<std::byte> out;
    for (int64_t r = 0; r < box.size[0]; ++r) {
      const auto row =
          matrix.subspan(static_cast<size_t>(((box.offset[0] + r) * columns + box.offset[1]) * element),
                         static_cast<size_t>(box.size[1] * element));
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }

  int64_t rows_;
  int64_t columns_;
  DType dtype_;
  std::vector<std::byte> bytes_;
  std::vector<uint8_t> values_;
  std::vector<float> scales_;
};

}  // namespace weightcast::test
