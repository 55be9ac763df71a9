#include "weightcast/tensor.h"

#include <array>

namespace weightcast {
namespace {

struct DTypeRow {
  std::string_view name;
  int bits;
};

// In the order of the enum.
constexpr std::array<DTypeRow, kDTypeCount> kDTypes = {
    {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
     {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
     {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
     {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}}};

}  // namespace

int BitsOf(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bits; }

std::string_view NameOf(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

std::optional<DType> DTypeFromName(std::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

int64_t ElementsOf(const Shape& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

int64_t BytesOf(DType dtype, int64_t elements) { return (elements * BitsOf(dtype) + 7) / 8; }

std::string ToString(const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(shape[i]);
  }
  return out + "]";
}

std::string ToString(const Box& box) {
  std::string out = "[";
  for (size_t i = 0; i < box.offset.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(box.offset[i]) + ":" + std::to_string(box.offset[i] + box.size[i]);
  }
  return out + "]";
}

Box WholeOf(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

}  // namespace weightcast
