#include "checkpoint/generate.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/boxes.h"

namespace weightcast::checkpoint {
namespace {

struct Masks {
  uint64_t keep;
  uint64_t set;
  uint64_t low;
  uint64_t change;
  uint64_t nan = 0;
  uint64_t care = 0;  ///< 0: no guard.
};

constexpr uint64_t By8(uint64_t mask) { return mask * 0x0101010101010101; }
constexpr uint64_t By16(uint64_t mask) { return mask * 0x0001000100010001; }
constexpr uint64_t By32(uint64_t mask) { return mask * 0x0000000100000001; }

constexpr Masks Bytewise(uint64_t keep, uint64_t set, uint64_t low, uint64_t change, uint64_t nan = 0,
                         uint64_t care = 0) {
  return {By8(keep), By8(set), By8(low), By8(change), By8(nan), By8(care)};
}

// The table of the header.
constexpr Masks MasksOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return Bytewise(0x01, 0x00, 0x01, 0x00);
    case DType::kF4:
      return Bytewise(0xEE, 0x00, 0x11, 0x22);
    case DType::kF6E2M3:
    case DType::kF6E3M2:
    case DType::kU8:
    case DType::kI8:
      return Bytewise(0xFE, 0x00, 0x01, 0x0E);
    case DType::kF8E5M2:
      return Bytewise(0xBE, 0x00, 0x01, 0x02);
    case DType::kF8E4M3:
      return Bytewise(0xBE, 0x00, 0x01, 0x02, 0x7F, 0x7F);
    case DType::kF8E8M0:
      return Bytewise(0x0E, 0x70, 0x01, 0x02, 0xFF, 0xFF);
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2FNUZ:
      return Bytewise(0x9E, 0x20, 0x01, 0x02, 0x80, 0xFF);
    case DType::kI16:
    case DType::kU16:
      return {By16(0xFFFE), 0, By16(1), By16(0x000E)};
    case DType::kF16:
      return {By16(0x8FFE), By16(0x2000), By16(1), By16(0x001E)};
    case DType::kBF16:
      return {By16(0x81FE), By16(0x3C00), By16(1), By16(0x0006)};
    case DType::kI32:
    case DType::kU32:
      return {By32(0xFFFFFFFE), 0, By32(1), By32(0x000000FE)};
    case DType::kF32:
    case DType::kC64:
      return {By32(0x81FFFFFE), By32(0x3C000000), By32(1), By32(0x0000FFFE)};
    case DType::kI64:
    case DType::kU64:
      return {0xFFFFFFFFFFFFFFFE, 0, 1, 0x00000000000000FE};
    case DType::kF64:
      return {0x803FFFFFFFFFFFFE, 0x3F80000000000000, 1, 0x00000000FFFFFFFE};
  }
  return {};
}

constexpr uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

constexpr uint64_t Fnv(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

uint64_t SeedOf(std::string_view name, int64_t version) {
  return Mix(Fnv(name) + static_cast<uint64_t>(version) * 0xD1342543DE82EF95);
}

constexpr uint64_t Noise(uint64_t seed, uint64_t word) { return Mix(seed + word * 0x9E3779B97F4A7C15); }

// 0x80 in each byte of `value` that is zero.
constexpr uint64_t ZeroBytes(uint64_t value) {
  constexpr uint64_t kLow7 = By8(0x7F);
  return ~(((value & kLow7) + kLow7) | value | kLow7);
}

constexpr uint64_t Guard(const Masks& masks, uint64_t before, uint64_t after) {
  const uint64_t made = ZeroBytes((after ^ masks.nan) & masks.care);
  const uint64_t had = ZeroBytes((before ^ masks.nan) & masks.care);
  return after ^ ((made & ~had) >> 1);
}

// Calls word(i, old) for every word that overlaps the range and stores what it gives; `old` are the
// bytes that stand there (zero outside of the range).
template <typename Word>
void ForEachWord(uint64_t byte_offset, std::span<std::byte> bytes, const Word& word) {
  const auto part = [&](uint64_t index, size_t begin, std::span<std::byte> piece) {
    uint64_t value = 0;
    std::memcpy(reinterpret_cast<std::byte*>(&value) + begin, piece.data(), piece.size());
    value = word(index, value);
    std::memcpy(piece.data(), reinterpret_cast<const std::byte*>(&value) + begin, piece.size());
  };
  if (bytes.empty()) return;
  uint64_t index = byte_offset / 8;
  if (const size_t skip = byte_offset % 8; skip != 0) {
    const size_t head = std::min(bytes.size(), 8 - skip);
    part(index++, skip, bytes.first(head));
    bytes = bytes.subspan(head);
  }
  std::byte* at = bytes.data();
  for (size_t left = bytes.size() / 8; left > 0; --left, ++index, at += 8) {
    uint64_t value = 0;
    std::memcpy(&value, at, 8);
    value = word(index, value);
    std::memcpy(at, &value, 8);
  }
  if (const size_t tail = bytes.size() % 8; tail != 0) part(index, 0, bytes.last(tail));
}

}  // namespace

void FillRange(std::string_view name, DType dtype, int64_t version, uint64_t byte_offset,
               std::span<std::byte> out) {
  const Masks masks = MasksOf(dtype);
  const uint64_t seed = SeedOf(name, dtype == DType::kBool ? 0 : version);
  const uint64_t odd = version % 2 != 0 ? masks.low : 0;
  ForEachWord(byte_offset, out, [masks, seed, odd](uint64_t index, uint64_t) {
    return ((Noise(seed, index) & masks.keep) | masks.set) ^ odd;
  });
}

void ChangeRange(std::string_view name, DType dtype, int64_t version, uint64_t byte_offset,
                 std::span<std::byte> bytes) {
  if (version == 1) return;
  const Masks masks = MasksOf(dtype);
  const uint64_t seed = SeedOf(name, version);
  const uint64_t even = version % 2 == 0 ? masks.low : 0;
  const auto change = [masks, seed, even](uint64_t index, uint64_t old) {
    return old ^ (Noise(seed, index) & masks.change) ^ even;
  };
  if (masks.care == 0) return ForEachWord(byte_offset, bytes, change);
  ForEachWord(byte_offset, bytes, [masks, change](uint64_t index, uint64_t old) {
    return Guard(masks, old, change(index, old));
  });
}

Status FillBox(const TensorInfo& tensor, const Box& box, int64_t version, std::span<std::byte> out) {
  WC_ASSIGN_OR_RETURN(const auto runs, RunsOf(tensor, box, out.size()));
  runs.ForEach([&](const plan::Segment& run) {
    FillRange(tensor.name, tensor.dtype, version, run.src_offset, out.subspan(run.dst_offset, run.dst_bytes));
  });
  return Status::Ok();
}

Status ChangeBox(const TensorInfo& tensor, const Box& box, int64_t version, std::span<std::byte> bytes) {
  WC_ASSIGN_OR_RETURN(const auto runs, RunsOf(tensor, box, bytes.size()));
  runs.ForEach([&](const plan::Segment& run) {
    ChangeRange(tensor.name, tensor.dtype, version, run.src_offset,
                bytes.subspan(run.dst_offset, run.dst_bytes));
  });
  return Status::Ok();
}

}  // namespace weightcast::checkpoint
