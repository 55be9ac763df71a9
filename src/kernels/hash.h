#pragma once

#include "kernels/lane.h"

/// XXH64 with seed 0 of pieces ("leaves") of 64 KiB. A leaf is hashed by four lanes: the algorithm's four
/// accumulators, each of which takes 8 of every 32 bytes.
namespace weightcast::kernels {

inline constexpr uint64_t kLeafBytes = 65536;
inline constexpr uint32_t kLeafLanes = 4;

/// Parameters of hash_leaves. Leaf i begins at source + i * kLeafBytes; the last one may be shorter.
struct HashParameters {
  uint64_t source;
  uint64_t bytes;
  uint64_t sums;  ///< 8 bytes for each leaf.
};

inline constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87;
inline constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
inline constexpr uint64_t kPrime3 = 0x165667B19E3779F9;
inline constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
inline constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5;

inline uint64_t RotateLeft(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

inline uint64_t HashRound(uint64_t accumulator, uint64_t input) {
  return RotateLeft(accumulator + input * kPrime2, 31) * kPrime1;
}

/// 8 bytes at any address.
inline uint64_t LoadUnaligned(uint64_t address) {
#ifdef __NVPTX__
  if ((address & 7) != 0) {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= uint64_t{Load<uint8_t>(address + i)} << 8 * i;
    return value;
  }
#endif
  return Load<uint64_t>(address);
}

/// Accumulator `lane` (0..3) after the whole stripes of a leaf.
inline uint64_t HashStripes(uint32_t lane, uint64_t leaf, uint64_t bytes) {
  constexpr int kAhead = 16;  // Loads that are under way at once.
  const uint64_t start[kLeafLanes] = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
  uint64_t accumulator = lane == 0 ? start[0] : lane == 1 ? start[1] : lane == 2 ? start[2] : start[3];
  const uint64_t stripes = bytes / 32;
  uint64_t at = leaf + 8 * lane;
  uint64_t done = 0;
  if ((leaf & 7) == 0) {
    for (; done + kAhead <= stripes; done += kAhead, at += 32 * kAhead) {
      uint64_t input[kAhead];
      WC_UNROLL for (int i = 0; i < kAhead; ++i) input[i] = Load<uint64_t>(at + 32 * i);
      WC_UNROLL for (int i = 0; i < kAhead; ++i) accumulator = HashRound(accumulator, input[i]);
    }
  }
  for (; done < stripes; ++done, at += 32) accumulator = HashRound(accumulator, LoadUnaligned(at));
  return accumulator;
}

/// The bytes behind the last stripe, and the final mix.
inline uint64_t HashTail(uint64_t hash, uint64_t at, uint64_t bytes) {
  for (; bytes >= 8; bytes -= 8, at += 8)
    hash = RotateLeft(hash ^ HashRound(0, LoadUnaligned(at)), 27) * kPrime1 + kPrime4;
  if (bytes >= 4) {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word |= uint32_t{Load<uint8_t>(at + i)} << 8 * i;
    hash = RotateLeft(hash ^ word * kPrime1, 23) * kPrime2 + kPrime3;
    bytes -= 4;
    at += 4;
  }
  for (; bytes > 0; --bytes, ++at) hash = RotateLeft(hash ^ Load<uint8_t>(at) * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

/// The leaf's hash from its four accumulators.
inline uint64_t HashEnd(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t leaf, uint64_t bytes) {
  uint64_t hash = kPrime5;
  if (bytes >= 32) {
    hash = RotateLeft(a, 1) + RotateLeft(b, 7) + RotateLeft(c, 12) + RotateLeft(d, 18);
    const uint64_t all[kLeafLanes] = {a, b, c, d};
    WC_UNROLL for (uint32_t i = 0; i < kLeafLanes; ++i) hash =
        (hash ^ HashRound(0, all[i])) * kPrime1 + kPrime4;
  }
  return HashTail(hash + bytes, leaf + bytes / 32 * 32, bytes % 32);
}

inline uint64_t LeavesOf(uint64_t bytes) { return (bytes + kLeafBytes - 1) / kLeafBytes; }

inline uint64_t BytesOfLeaf(const HashParameters& p, uint64_t leaf) {
  const uint64_t rest = p.bytes - leaf * kLeafBytes;
  return rest < kLeafBytes ? rest : kLeafBytes;
}

}  // namespace weightcast::kernels
