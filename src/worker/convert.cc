#include "worker/convert.h"

#include <bit>
#include <cstring>

namespace weightcast::worker {
namespace {

constexpr uint32_t kF32Infinity = 0x7f800000;

bool IsFloat(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

template <typename T>
T Load(const std::byte* at, int64_t index) {
  T value;
  std::memcpy(&value, at + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void Store(std::byte* at, int64_t index, T value) {
  std::memcpy(at + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

/// The loop is plain so that the compiler may use vector instructions.
template <typename From, typename To, typename Fn>
void Each(const std::byte* source, std::byte* target, int64_t count, Fn fn) {
  for (int64_t i = 0; i < count; ++i) Store<To>(target, i, fn(Load<From>(source, i)));
}

}  // namespace

uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > kF32Infinity ? quiet : rounded);
}

float FromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t ToF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Normal: the exponent's bias moves from 127 to 15 and the fraction loses 13 bits; a carry out of the
  // fraction raises the exponent, up to infinity.
  const uint32_t normal = (magnitude - (112U << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Subnormal: adding 1/2 lets the processor round to the last of F16's subnormal steps, 2^-24.
  const float half = std::bit_cast<float>(magnitude) + 0.5F;
  const uint32_t subnormal = std::bit_cast<uint32_t>(half) - 0x3f000000;
  constexpr uint32_t kSmallestNormal = 113U << 23;  // 2^-14
  constexpr uint32_t kTooLarge = (143U << 23);      // 2^16
  uint32_t result = magnitude < kSmallestNormal ? subnormal : normal;
  if (magnitude >= kTooLarge) result = 0x7c00;
  if (magnitude > kF32Infinity) result = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  return static_cast<uint16_t>(sign | result);
}

float FromF16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16;
  const uint32_t magnitude = bits & 0x7fffU;
  // Shifted into place the exponent lacks 112; a multiplication by 2^112 is exact, for subnormals too.
  const float scaled = std::bit_cast<float>(magnitude << 13) * std::bit_cast<float>((127U + 112U) << 23);
  uint32_t result = std::bit_cast<uint32_t>(scaled);
  if (magnitude >= 0x7c00) result = kF32Infinity | (magnitude & 0x3ff) << 13;
  if (magnitude > 0x7c00) result |= 0x400000;
  return std::bit_cast<float>(sign | result);
}

bool CanConvert(DType from, DType to) { return from == to || (IsFloat(from) && IsFloat(to)); }

void Convert(DType from, const std::byte* source, DType to, std::byte* target, int64_t count) {
  const auto pair = [&](DType a, DType b) { return from == a && to == b; };
  if (from == to) {
    std::memcpy(target, source, static_cast<size_t>(BytesOf(from, count)));
  } else if (pair(DType::kF32, DType::kBF16)) {
    Each<float, uint16_t>(source, target, count, ToBf16);
  } else if (pair(DType::kF32, DType::kF16)) {
    Each<float, uint16_t>(source, target, count, ToF16);
  } else if (pair(DType::kBF16, DType::kF32)) {
    Each<uint16_t, float>(source, target, count, FromBf16);
  } else if (pair(DType::kF16, DType::kF32)) {
    Each<uint16_t, float>(source, target, count, FromF16);
  } else if (pair(DType::kBF16, DType::kF16)) {
    Each<uint16_t, uint16_t>(source, target, count, [](uint16_t bits) { return ToF16(FromBf16(bits)); });
  } else if (pair(DType::kF16, DType::kBF16)) {
    Each<uint16_t, uint16_t>(source, target, count, [](uint16_t bits) { return ToBf16(FromF16(bits)); });
  }
}

}  // namespace weightcast::worker
