#pragma once

#include "kernels/digest_math.h"
#include "kernels/gather.h"

/// The digest (docs/digest.md) of a box that lies in memory with strides. The box's bytes count by their
/// place in the whole tensor. A warp takes one block of one row at a time (a cell).
namespace weightcast::kernels {

inline constexpr uint32_t kDigestTerms = 2 * (kDigestDots + 1);

/// For each half of a digest the dot products, then the count of bytes: each times the block's key, modulo
/// the prime, added up over all cells. Those sums are of the low 32 bits and of the upper ones, so that their
/// order does not matter.
struct DigestSums {
  struct Term {
    uint64_t low;
    uint64_t high;
  };
  Term term[kDigestTerms];
};

/// Parameters of digest: adds to the DigestSums at `sums`. A row is contiguous in the tensor; only of the
/// first and of the last one parts are left out.
struct DigestParameters {
  uint64_t source;   ///< Where the first byte of the box's first row lies.
  uint64_t place;    ///< Its number among the tensor's bytes.
  uint64_t sums;     ///< Address.
  uint64_t seed[2];  ///< Of the block keys, for each half.
  uint64_t row;      ///< Bytes of a row.
  uint64_t begin;    ///< The first byte of the first row that counts.
  uint64_t end;      ///< Behind the last byte of the last row that counts.
  uint64_t first;    ///< Cells before the first row that counts.
  uint64_t cells;    ///< Of the rows that count.
  int64_t apart;     ///< Bytes from element to element of a row.
  uint32_t shift;    ///< An element has 2^shift bytes; 0 for rows that are contiguous in memory.
  uint32_t unit;     ///< Bytes that may be read at once at places that are multiples of it: 1 to 16.
  uint32_t dims;     ///< Those that are not 1, at the end of the arrays; the others are 1.
  uint32_t reserved;
  uint64_t size[kBoxDims];   ///< Rows, outermost first; the last is the most blocks that a row lies in.
  int64_t stride[kBoxDims];  ///< Bytes of memory from one to the next; the last is 0.
  int64_t step[kBoxDims];    ///< The same in the tensor.
};

/// Lanes of 16 bytes with what the table has for them: factors' low bytes, unsigned, then their high bytes.
inline constexpr uint32_t kDigestVector = 16;
inline constexpr uint32_t kVectorLanes = kDigestVector / 2;
inline constexpr uint32_t kDigestEntries =
    kDigestBlock / kDigestVector + (kDigestDots - 1) * kDigestStep / kVectorLanes;

inline Vector DigestTableEntry(uint32_t number) {
  Vector entry{};
  WC_UNROLL for (uint32_t i = 0; i < kVectorLanes; ++i) {
    const auto value = static_cast<uint32_t>(DigestTableValue(uint64_t{number} * kVectorLanes + i));
    entry[i / 4] |= (value & 0xff) << i % 4 * 8;
    entry[2 + i / 4] |= (value >> 8 & 0xff) << i % 4 * 8;
  }
  return entry;
}

/// Adds the products of two signed lanes of 16 bits with the lower or the upper two bytes of `factors`.
#ifdef __NVPTX__
#define WC_DOT(name, instruction, kUpper, FactorByte)                                        \
  WC_INLINE int32_t name(uint32_t lanes, uint32_t factors, int32_t sum) {                    \
    int32_t result;                                                                          \
    asm(instruction " %0, %1, %2, %3;" : "=r"(result) : "r"(lanes), "r"(factors), "r"(sum)); \
    return result;                                                                           \
  }
#else
#define WC_DOT(name, instruction, kUpper, FactorByte)                               \
  WC_INLINE int32_t name(uint32_t lanes, uint32_t factors, int32_t sum) {           \
    const uint32_t bytes = factors >> 16 * kUpper;                                  \
    return sum + static_cast<int16_t>(lanes) * static_cast<FactorByte>(bytes) +     \
           static_cast<int16_t>(lanes >> 16) * static_cast<FactorByte>(bytes >> 8); \
  }
#endif
WC_DOT(DotLowerUnsigned, "dp2a.lo.s32.u32", 0, uint8_t)
WC_DOT(DotUpperUnsigned, "dp2a.hi.s32.u32", 1, uint8_t)
WC_DOT(DotLowerSigned, "dp2a.lo.s32.s32", 0, int8_t)
WC_DOT(DotUpperSigned, "dp2a.hi.s32.s32", 1, int8_t)
#undef WC_DOT

/// The dot products of what one thread reads of a block: at most 17 vectors, so that sums of the factors' low
/// bytes stay below 17 * 8 * 2^15 * 2^8 < 2^31.
class ThreadDots {
 public:
  /// `vector`: its number in the block.
  template <typename Table>
  WC_INLINE void Add(const Table& table, uint32_t vector, Vector lanes) {
    WC_UNROLL for (uint32_t dot = 0; dot < kDigestDots; ++dot) {
      const Vector factors = table.At(vector + dot * (kDigestStep / kVectorLanes));
      WC_UNROLL for (uint32_t i = 0; i < 2; ++i) {
        low_[dot] = DotLowerUnsigned(lanes[2 * i], factors[i], low_[dot]);
        low_[dot] = DotUpperUnsigned(lanes[2 * i + 1], factors[i], low_[dot]);
        high_[dot] = DotLowerSigned(lanes[2 * i], factors[2 + i], high_[dot]);
        high_[dot] = DotUpperSigned(lanes[2 * i + 1], factors[2 + i], high_[dot]);
      }
    }
  }
  [[nodiscard]] WC_INLINE int64_t Of(uint32_t dot) const { return int64_t{high_[dot]} * 256 + low_[dot]; }

 private:
  int32_t low_[kDigestDots] = {};
  int32_t high_[kDigestDots] = {};
};

/// What lies in one block of one row.
struct DigestCell {
  uint64_t row = 0;  ///< Address of the row's first byte.
  uint64_t ahead =
      0;  ///< From the row's first byte to the block's, which may lie in front of it: modulo 2^64.
  uint64_t block = 0;
  uint32_t from = 0;  ///< Bytes of the block: [from, to); none where they are equal.
  uint32_t to = 0;
};

/// Number `number` of the cells that count.
WC_INLINE DigestCell CellAt(const DigestParameters& p, uint64_t number) {
  DigestCell cell;
  cell.row = p.source;
  uint64_t row = p.place;
  uint64_t rest = p.first + number;
  WC_UNROLL for (int d = kBoxDims - 1; d >= 0; --d) {
    if (d + static_cast<int>(p.dims) < kBoxDims) continue;
    const uint64_t digit = rest % p.size[d];
    rest /= p.size[d];
    cell.row += digit * static_cast<uint64_t>(p.stride[d]);
    row += digit * static_cast<uint64_t>(p.step[d]);
    if (d + 1 == kBoxDims) cell.block = digit;
  }
  const uint64_t per_row = p.size[kBoxDims - 1];
  cell.block += row / kDigestBlock;
  const uint64_t block = cell.block * kDigestBlock;
  cell.ahead = block - row;
  const uint64_t begin = row + (number < per_row ? p.begin : 0);
  const uint64_t end = row + (number + per_row >= p.cells ? p.end : p.row);
  const uint64_t from = begin > block ? begin : block;
  const uint64_t to = end < block + kDigestBlock ? end : block + kDigestBlock;
  if (from < to) {
    cell.from = static_cast<uint32_t>(from - block);
    cell.to = static_cast<uint32_t>(to - block);
  }
  return cell;
}

/// The 16 bytes from `offset` on in the cell's block, all of which are the cell's.
template <typename Word>
WC_INLINE Vector LoadWords(const DigestParameters& p, const DigestCell& cell, uint32_t offset) {
  const uint64_t at = cell.ahead + offset;
  if constexpr (sizeof(Word) == sizeof(Vector)) {
    return Load<Vector>(cell.row + at);
  } else {
    Vector lanes{};
    WC_UNROLL for (uint32_t i = 0; i < sizeof(Vector) / sizeof(Word); ++i) {
      const uint64_t element = (at + i * sizeof(Word)) >> p.shift;
      const Word word = Load<Word>(cell.row + element * static_cast<uint64_t>(p.apart));
      const uint32_t byte = i * sizeof(Word);
      lanes[byte / 4] |= static_cast<uint32_t>(word) << byte % 4 * 8;
      if constexpr (sizeof(Word) == 8) lanes[byte / 4 + 1] = static_cast<uint32_t>(word >> 32);
    }
    return lanes;
  }
}

/// The same of 16 bytes of which some are not the cell's: those are zero.
WC_INLINE Vector LoadBytes(const DigestParameters& p, const DigestCell& cell, uint32_t offset) {
  const uint64_t inside = (uint64_t{1} << p.shift) - 1;
  Vector lanes{};
  WC_UNROLL for (uint32_t i = 0; i < kDigestVector; ++i) {
    if (offset + i < cell.from || offset + i >= cell.to) continue;
    const uint64_t at = cell.ahead + offset + i;
    const uint64_t address = cell.row + (at >> p.shift) * static_cast<uint64_t>(p.apart) + (at & inside);
    lanes[i / 4] |= uint32_t{Load<uint8_t>(address)} << i % 4 * 8;
  }
  return lanes;
}

/// Whole vectors of a thread whose loads are under way at once.
inline constexpr uint32_t kVectorsAhead = 4;
using VectorsAhead = Vector[kVectorsAhead];

/// Those from number `vector` on, a warp apart, that begin in front of `end`.
template <typename Word>
WC_INLINE void LoadAhead(const DigestParameters& p, const DigestCell& cell, uint32_t vector, uint32_t end,
                         VectorsAhead& lanes) {
  WC_UNROLL for (uint32_t i = 0; i < kVectorsAhead; ++i) {
    const uint32_t at = vector + i * kWarp;
    lanes[i] = at < end ? LoadWords<Word>(p, cell, at * kDigestVector) : Vector{};
  }
}

/// What thread `thread` of a warp adds of a cell.
template <typename Table>
WC_INLINE ThreadDots DotsOf(const DigestParameters& p, const DigestCell& cell, const Table& table,
                            uint32_t thread) {
  ThreadDots dots;
  const uint32_t end = cell.to / kDigestVector;
  uint32_t vector = (cell.from + kDigestVector - 1) / kDigestVector + thread;
  for (; vector < end; vector += kVectorsAhead * kWarp) {
    VectorsAhead lanes;
    if (p.unit == 16) LoadAhead<Vector>(p, cell, vector, end, lanes);
    if (p.unit == 8) LoadAhead<uint64_t>(p, cell, vector, end, lanes);
    if (p.unit == 4) LoadAhead<uint32_t>(p, cell, vector, end, lanes);
    if (p.unit == 2) LoadAhead<uint16_t>(p, cell, vector, end, lanes);
    if (p.unit == 1) LoadAhead<uint8_t>(p, cell, vector, end, lanes);
    WC_UNROLL for (uint32_t i = 0; i < kVectorsAhead; ++i) {
      if (vector + i * kWarp < end) dots.Add(table, vector + i * kWarp, lanes[i]);
    }
  }
  // Vectors that the cell begins or ends in the middle of.
  const uint32_t first = cell.from / kDigestVector;
  const uint32_t last = cell.to / kDigestVector;
  const bool begins = cell.from % kDigestVector != 0;
  const bool ends = cell.to % kDigestVector != 0 && !(begins && first == last);
  if ((thread == 0 && begins) || (thread == 1 && ends)) {
    const uint32_t edge = thread == 0 ? first : last;
    dots.Add(table, edge, LoadBytes(p, cell, edge * kDigestVector));
  }
  return dots;
}

/// A term of a cell: `value` is the dot product, or the count of bytes, with that number.
inline uint64_t DigestTerm(const DigestParameters& p, uint32_t term, uint64_t block, int64_t value) {
  const uint64_t seed = term <= kDigestDots ? p.seed[0] : p.seed[1];
  const auto unsigned_value = static_cast<uint64_t>(value);
  return MultiplyInField(RandomFactor(seed, block), value < 0 ? unsigned_value + kPrime : unsigned_value);
}

}  // namespace weightcast::kernels
