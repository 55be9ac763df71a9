#pragma once

#include "kernels/lane.h"

/// The pattern of the measurements (tools/bench/p2p/memory.cc): the 8 bytes at offset i are seed + i.
namespace weightcast::kernels {

/// Parameters of fill. The address is a multiple of 8; the last word may be cut.
struct FillParameters {
  uint64_t target;
  uint64_t bytes;
  uint64_t seed;
};

/// Parameters of compare: adds to the 8 bytes at `differences` the number of words that differ.
struct CompareParameters {
  uint64_t source;
  uint64_t bytes;
  uint64_t seed;
  uint64_t differences;
};

inline void Fill(Lane lane, const FillParameters& p) {
  const uint64_t words = p.bytes / 8;
  const uint64_t pairs = (p.target & 15) == 0 ? words / 2 : 0;
  for (uint64_t i = lane.index(); i < pairs; i += lane.count()) {
    const uint64_t first = p.seed + 16 * i;
    const uint64_t second = first + 8;
    Store(p.target + 16 * i, Vector{static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32),
                                    static_cast<uint32_t>(second), static_cast<uint32_t>(second >> 32)});
  }
  for (uint64_t i = 2 * pairs + lane.index(); i < words; i += lane.count())
    Store<uint64_t>(p.target + 8 * i, p.seed + 8 * i);
  if (lane.index() != 0) return;
  for (uint64_t at = 8 * words; at < p.bytes; ++at)
    Store<uint8_t>(p.target + at, static_cast<uint8_t>((p.seed + 8 * words) >> 8 * (at % 8)));
}

/// Words of this lane that differ from the pattern.
inline uint64_t Differences(Lane lane, const CompareParameters& p) {
  const uint64_t words = p.bytes / 8;
  const uint64_t pairs = (p.source & 15) == 0 ? words / 2 : 0;
  uint64_t differences = 0;
  for (uint64_t i = lane.index(); i < pairs; i += lane.count()) {
    const auto found = Load<Vector>(p.source + 16 * i);
    const uint64_t first = uint64_t{found[1]} << 32 | found[0];
    const uint64_t second = uint64_t{found[3]} << 32 | found[2];
    differences += (first != p.seed + 16 * i) + (second != p.seed + 16 * i + 8);
  }
  for (uint64_t i = 2 * pairs + lane.index(); i < words; i += lane.count())
    differences += Load<uint64_t>(p.source + 8 * i) != p.seed + 8 * i;
  if (lane.index() != 0) return differences;
  bool same = true;
  for (uint64_t at = 8 * words; at < p.bytes; ++at)
    same &= Load<uint8_t>(p.source + at) == static_cast<uint8_t>((p.seed + 8 * words) >> 8 * (at % 8));
  return differences + !same;
}

}  // namespace weightcast::kernels
