#include "worker/convert.h"

#include <cstring>

#include "kernels/list.h"

namespace weightcast::worker {
namespace {

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

void Convert(DType from, const std::byte* source, DType to, std::byte* target, int64_t count) {
  if (from == to) std::memcpy(target, source, static_cast<size_t>(BytesOf(from, count)));
#define WC_CONVERT(name, From, To) \
  if (from == DType::k##From && to == DType::k##To) Each<kernels::From, kernels::To>(source, target, count);
  WC_CASTS(WC_CONVERT)
#undef WC_CONVERT
}

}  // namespace weightcast::worker
