#include "worker/convert.h"

#include <cstring>

namespace weightcast::worker {
namespace {

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
template <typename From, typename To>
void Each(const std::byte* source, std::byte* target, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    Store(target, i, kernels::Cast<From, To>(Load<typename From::Bits>(source, i)));
}

}  // namespace

bool CanConvert(DType from, DType to) { return from == to || (IsFloat(from) && IsFloat(to)); }

void Convert(DType from, const std::byte* source, DType to, std::byte* target, int64_t count) {
  const auto pair = [&](DType a, DType b) { return from == a && to == b; };
  if (from == to) {
    std::memcpy(target, source, static_cast<size_t>(BytesOf(from, count)));
  } else if (pair(DType::kF32, DType::kBF16)) {
    Each<kernels::F32, kernels::BF16>(source, target, count);
  } else if (pair(DType::kF32, DType::kF16)) {
    Each<kernels::F32, kernels::F16>(source, target, count);
  } else if (pair(DType::kBF16, DType::kF32)) {
    Each<kernels::BF16, kernels::F32>(source, target, count);
  } else if (pair(DType::kF16, DType::kF32)) {
    Each<kernels::F16, kernels::F32>(source, target, count);
  } else if (pair(DType::kBF16, DType::kF16)) {
    Each<kernels::BF16, kernels::F16>(source, target, count);
  } else if (pair(DType::kF16, DType::kBF16)) {
    Each<kernels::F16, kernels::BF16>(source, target, count);
  }
}

}  // namespace weightcast::worker
