#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weightcast {

/// Element types: those of the safetensors format, under its names.
enum class DType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};
inline constexpr int kDTypeCount = static_cast<int>(DType::kU64) + 1;

/// Bits of one element: 4, 6, 8, 16, 32 or 64.
int BitsOf(DType dtype);
/// "BF16", "F8_E4M3", ... as written in a safetensors header.
std::string_view NameOf(DType dtype);
/// The dtype of a safetensors name; nullopt if there is none of that name.
std::optional<DType> DTypeFromName(std::string_view name);

/// Elements per dimension, row-major. Empty for a scalar.
using Shape = std::vector<int64_t>;

/// A box of a tensor: for each dimension where it begins and how many elements it spans.
struct Box {
  Shape offset;
  Shape size;
  friend bool operator==(const Box&, const Box&) = default;
};

/// What a tensor is, whoever holds it.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kU8;
  Shape shape;
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

/// Product of the dimensions; 1 for a scalar. The caller has checked for overflow (CheckTensor).
int64_t ElementsOf(const Shape& shape);
/// Bytes of `elements` elements, rounded up to whole bytes for sub-byte types.
int64_t BytesOf(DType dtype, int64_t elements);
/// "[768, 2304]".
std::string ToString(const Shape& shape);
/// "[0:384, 0:2304]".
std::string ToString(const Box& box);
/// The box that is all of a tensor of this shape.
Box WholeOf(const Shape& shape);

}  // namespace weightcast
