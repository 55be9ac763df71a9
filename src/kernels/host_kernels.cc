#include "kernels/host_kernels.h"

#include <algorithm>

#include "kernels/convert.h"
#include "kernels/copy_list.h"
#include "kernels/digest.h"
#include "kernels/fill.h"
#include "kernels/gather.h"
#include "kernels/hash.h"
#include "kernels/list.h"
#include "kernels/quantise.h"

namespace weightcast::kernels {
namespace {

template <typename P>
const P& Parameter(void** parameters) {
  return *static_cast<const P*>(parameters[0]);
}

/// Calls fn(Lane) for each thread of a launch.
template <typename Fn>
void ForEachLane(Grid grid, Fn fn) {
  for (uint32_t block = 0; block < grid.blocks; ++block)
    for (uint32_t thread = 0; thread < grid.threads; ++thread)
      fn(Lane{thread, grid.threads, block, grid.blocks});
}

/// A kernel whose threads do not talk to each other: its function runs once for each of them.
template <typename P, auto kFn>
void Independent(Grid grid, void** parameters) {
  ForEachLane(grid, [&](Lane lane) { kFn(lane, Parameter<P>(parameters)); });
}

void RunCopyList(Grid grid, void** parameters) {
  const auto& list = Parameter<CopyList>(parameters);
  ForEachLane(grid, [&](Lane lane) {
    TileTurn turn(lane);
    for (uint32_t i = 0; i < list.count; ++i) turn.Copy(list.piece[i]);
  });
}

void RunCopyPieces(Grid grid, void** parameters) {
  const auto& p = Parameter<CopyPiecesParameters>(parameters);
  ForEachLane(grid, [&](Lane lane) {
    TileTurn turn(lane);
    for (uint32_t i = 0; i < p.count; ++i) turn.Copy(Load<CopyPiece>(p.pieces + i * sizeof(CopyPiece)));
  });
}

void RunCompare(Grid grid, void** parameters) {
  const auto& p = Parameter<CompareParameters>(parameters);
  uint64_t differences = 0;
  ForEachLane(grid, [&](Lane lane) { differences += Differences(lane, p); });
  Store<uint64_t>(p.differences, Load<uint64_t>(p.differences) + differences);
}

struct HostTable {
  HostTable() {
    for (uint32_t i = 0; i < kDigestEntries; ++i) entries[i] = DigestTableEntry(i);
  }
  [[nodiscard]] Vector At(uint32_t entry) const { return entries[entry]; }
  Vector entries[kDigestEntries];
};

/// The GPU's warps share the cells.
void RunDigest(Grid, void** parameters) {
  static const HostTable table;
  const auto& p = Parameter<DigestParameters>(parameters);
  auto sums = Load<DigestSums>(p.sums);
  for (uint64_t number = 0; number < p.cells; ++number) {
    const DigestCell cell = CellAt(p, number);
    int64_t values[kDigestDots + 1] = {};
    for (uint32_t thread = 0; thread < kWarp && cell.from != cell.to; ++thread) {
      const ThreadDots dots = DotsOf(p, cell, table, thread);
      for (uint32_t dot = 0; dot < kDigestDots; ++dot) values[dot] += dots.Of(dot);
    }
    values[kDigestDots] = cell.to - cell.from;
    for (uint32_t term = 0; term < kDigestTerms; ++term) {
      const uint64_t value = DigestTerm(p, term, cell.block, values[term % (kDigestDots + 1)]);
      sums.term[term].low += static_cast<uint32_t>(value);
      sums.term[term].high += value >> 32;
    }
  }
  Store(p.sums, sums);
}

void RunHashLeaves(Grid, void** parameters) {
  const auto& p = Parameter<HashParameters>(parameters);
  for (uint64_t leaf = 0; leaf < LeavesOf(p.bytes); ++leaf) {
    const uint64_t bytes = BytesOfLeaf(p, leaf);
    const uint64_t from = p.source + leaf * kLeafBytes;
    uint64_t sum[kLeafLanes];
    for (uint32_t i = 0; i < kLeafLanes; ++i) sum[i] = HashStripes(i, from, bytes);
    Store<uint64_t>(p.sums + 8 * leaf, HashEnd(sum[0], sum[1], sum[2], sum[3], from, bytes));
  }
}

/// The GPU's threads meet between the two loops.
template <typename From, bool kWide>
void QuantiseTile(const QuantiseBlocksParameters& p, const Tile& tile) {
  uint32_t amax = 0;
  for (uint32_t thread = 0; thread < kQuantiseThreads; ++thread)
    amax = Larger(amax, TilePart<From, kWide>(p, tile, thread).Amax());
  const Scale scale(amax);
  for (uint32_t thread = 0; thread < kQuantiseThreads && p.target != 0; ++thread)
    TilePart<From, kWide>(p, tile, thread).Write(scale.inverse);
  if (p.scales != 0) Store<float>(tile.scale, scale.scale);
}

template <typename From>
void RunQuantiseBlocks(Grid, void** parameters) {
  const auto& p = Parameter<QuantiseBlocksParameters>(parameters);
  for (uint64_t number = 0; number < Tile::CountOf(p); ++number) {
    if (IsWide<From>(p)) {
      QuantiseTile<From, true>(p, Tile(p, number));
    } else {
      QuantiseTile<From, false>(p, Tile(p, number));
    }
  }
}

template <typename From>
void RunAmax(Grid grid, void** parameters) {
  const auto& p = Parameter<AmaxParameters>(parameters);
  auto amax = Load<uint32_t>(p.amax);
  ForEachLane(grid, [&](Lane lane) { amax = Larger(amax, LaneAmax<From>(lane, p)); });
  Store<uint32_t>(p.amax, amax);
}

#define WC_CAST(name, From, To)                                                              \
  {"cast_" #name, sizeof(CastParameters), Independent<CastParameters, CastDense<From, To>>}, \
      {"gather_" #name, sizeof(GatherParameters), Independent<GatherParameters, GatherCast<From, To>>},
#define WC_WORD(name, Word) \
  {"gather_" #name, sizeof(GatherParameters), Independent<GatherParameters, GatherUnits<CopyUnit<Word>>>},
#define WC_FLOAT(name, From)                                                             \
  {"quantise_blocks_" #name, sizeof(QuantiseBlocksParameters), RunQuantiseBlocks<From>}, \
      {"amax_" #name, sizeof(AmaxParameters), RunAmax<From>},                            \
      {"quantise_" #name, sizeof(QuantiseParameters), Independent<QuantiseParameters, QuantiseDense<From>>},

constexpr HostKernelEntry kKernels[] = {{"copy_list", sizeof(CopyList), RunCopyList},
                                        {"copy_pieces", sizeof(CopyPiecesParameters), RunCopyPieces},
                                        {"fill", sizeof(FillParameters), Independent<FillParameters, Fill>},
                                        {"compare", sizeof(CompareParameters), RunCompare},
                                        {"digest", sizeof(DigestParameters), RunDigest},
                                        {"hash_leaves", sizeof(HashParameters), RunHashLeaves},
                                        WC_CASTS(WC_CAST) WC_WORDS(WC_WORD) WC_FLOATS(WC_FLOAT)};

}  // namespace

std::span<const HostKernelEntry> HostKernels() { return kKernels; }

const HostKernelEntry* FindHostKernel(std::string_view name) {
  const auto* found = std::find_if(std::begin(kKernels), std::end(kKernels),
                                   [&](const auto& one) { return one.name == name; });
  return found == std::end(kKernels) ? nullptr : found;
}

}  // namespace weightcast::kernels
