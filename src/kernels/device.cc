// The kernels' entry points. Only clang's NVPTX back end compiles this file: scripts/make_kernels.

#include "kernels/convert.h"
#include "kernels/copy_list.h"
#include "kernels/digest.h"
#include "kernels/fill.h"
#include "kernels/gather.h"
#include "kernels/hash.h"
#include "kernels/list.h"
#include "kernels/quantise.h"

#define WC_KERNEL extern "C" __attribute__((nvptx_kernel, used)) void
#define WC_SHARED __attribute__((address_space(3))) static

namespace weightcast::kernels {
namespace {

Lane ThisLane() {
  return {static_cast<uint32_t>(__nvvm_read_ptx_sreg_tid_x()),
          static_cast<uint32_t>(__nvvm_read_ptx_sreg_ntid_x()),
          static_cast<uint32_t>(__nvvm_read_ptx_sreg_ctaid_x()),
          static_cast<uint32_t>(__nvvm_read_ptx_sreg_nctaid_x())};
}

constexpr int kAllLanes = -1;
constexpr int kWholeWarp = 31;

uint32_t WarpLarger(uint32_t value) {
  WC_UNROLL for (int apart = 16; apart > 0; apart /= 2) value =
      Larger(value, static_cast<uint32_t>(
                        __nvvm_shfl_sync_bfly_i32(kAllLanes, static_cast<int>(value), apart, kWholeWarp)));
  return value;
}

/// The largest value of the block's threads, for all of them; at most 32 warps.
uint32_t BlockLarger(Lane lane, uint32_t value) {
  WC_SHARED uint32_t of_warp[kWarp];
  value = WarpLarger(value);
  __nvvm_barrier_sync(0);  // The last call's values have been read.
  if (lane.thread % kWarp == 0) of_warp[lane.thread / kWarp] = value;
  __nvvm_barrier_sync(0);
  const uint32_t warps = lane.threads / kWarp;
  return WarpLarger(lane.thread % kWarp < warps ? of_warp[lane.thread % kWarp] : 0);
}

/// Accumulator `from` of the four lanes that share this thread's leaf.
uint64_t FromLeafLane(uint64_t value, int from) {
  constexpr int kFourLanes = (32 - 4) << 8 | 3;
  const int low = __nvvm_shfl_sync_idx_i32(kAllLanes, static_cast<int>(value), from, kFourLanes);
  const int high = __nvvm_shfl_sync_idx_i32(kAllLanes, static_cast<int>(value >> 32), from, kFourLanes);
  return uint64_t{static_cast<uint32_t>(high)} << 32 | static_cast<uint32_t>(low);
}

template <typename From, bool kWide>
WC_INLINE void QuantiseBlocks(Lane lane, const QuantiseBlocksParameters& p) {
  const uint64_t tiles = Tile::CountOf(p);
  for (uint64_t number = lane.block; number < tiles; number += lane.blocks) {
    const Tile tile(p, number);
    const TilePart<From, kWide> part(p, tile, lane.thread);
    const Scale scale(BlockLarger(lane, part.Amax()));
    if (p.target != 0) part.Write(scale.inverse);
    if (p.scales != 0 && lane.thread == 0) Store<float>(tile.scale, scale.scale);
  }
}

template <typename From>
void Amax(const AmaxParameters& p) {
  const Lane lane = ThisLane();
  const uint32_t amax = BlockLarger(lane, LaneAmax<From>(lane, p));
  if (lane.thread == 0) __nvvm_atom_max_gen_ui(reinterpret_cast<uint32_t*>(p.amax), amax);
}

/// The warp's sum, for all its threads. |value| is below 2^50.
int64_t WarpSum(int64_t value) {
  constexpr int kLow = 24;
  const int low = __nvvm_redux_sync_add(static_cast<int>(value & ((1 << kLow) - 1)), kAllLanes);
  const int high = __nvvm_redux_sync_add(static_cast<int>(value >> kLow), kAllLanes);
  return (int64_t{high} << kLow) + low;
}

struct SharedTable {
  /// One load: the compiler would make four.
  [[nodiscard]] WC_INLINE Vector At(uint32_t entry) const {
    uint32_t word[4];
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "l"(entries + entry));
    return {word[0], word[1], word[2], word[3]};
  }
  const __attribute__((address_space(3))) Vector* entries;
};

/// What this thread's term comes to over the cells of its warp; threads without a term return anything.
WC_INLINE DigestSums::Term DigestCells(Lane lane, const DigestParameters& p, const SharedTable& table) {
  const uint32_t thread = lane.thread % kWarp;
  DigestSums::Term sum{};
  for (uint64_t number = lane.index() / kWarp; number < p.cells; number += lane.count() / kWarp) {
    const DigestCell cell = CellAt(p, number);
    if (cell.from == cell.to) continue;
    const ThreadDots dots = DotsOf(p, cell, table, thread);
    int64_t value = cell.to - cell.from;
    WC_UNROLL for (uint32_t dot = 0; dot < kDigestDots; ++dot) {
      const int64_t of_warp = WarpSum(dots.Of(dot));
      value = thread % (kDigestDots + 1) == dot ? of_warp : value;
    }
    const uint64_t term = DigestTerm(p, thread, cell.block, value);
    sum.low += static_cast<uint32_t>(term);
    sum.high += term >> 32;
  }
  return sum;
}

}  // namespace

WC_KERNEL copy_list(CopyList list) {
  TileTurn turn(ThisLane());
  for (uint32_t i = 0; i < list.count; ++i) turn.Copy(list.piece[i]);
}

/// Each block reads the list in parts, once, into its own memory.
WC_KERNEL copy_pieces(CopyPiecesParameters p) {
  constexpr uint32_t kWords = sizeof(CopyPiece) / 4;
  WC_SHARED uint32_t words[kListPieces * kWords];
  const Lane lane = ThisLane();
  TileTurn turn(lane);
  for (uint32_t begin = 0; begin < p.count; begin += kListPieces) {
    const uint32_t pieces = p.count - begin < kListPieces ? p.count - begin : kListPieces;
    const uint64_t from = p.pieces + uint64_t{begin} * sizeof(CopyPiece);
    for (uint32_t i = lane.thread; i < pieces * kWords; i += lane.threads)
      words[i] = Load<uint32_t>(from + 4 * i);
    __nvvm_barrier_sync(0);
    for (uint32_t i = 0; i < pieces; ++i) {
      const uint32_t at = i * kWords;
      turn.Copy({uint64_t{words[at + 1]} << 32 | words[at], uint64_t{words[at + 3]} << 32 | words[at + 2],
                 words[at + 4]});
    }
    __nvvm_barrier_sync(0);
  }
}

WC_KERNEL fill(FillParameters p) { Fill(ThisLane(), p); }

WC_KERNEL compare(CompareParameters p) {
  const uint64_t differences = Differences(ThisLane(), p);
  if (differences != 0)
    __nvvm_atom_add_gen_ll(reinterpret_cast<long long*>(p.differences), static_cast<long long>(differences));
}

WC_KERNEL digest(DigestParameters p) {
  constexpr uint32_t kWords = sizeof(DigestSums) / 8;
  WC_SHARED Vector entries[kDigestEntries];
  WC_SHARED uint64_t of_warp[kWarp][kWords];
  const Lane lane = ThisLane();
  for (uint32_t i = lane.thread; i < kDigestEntries; i += lane.threads) entries[i] = DigestTableEntry(i);
  __nvvm_barrier_sync(0);
  const SharedTable table{entries};
  const DigestSums::Term term = DigestCells(lane, p, table);
  const uint32_t thread = lane.thread % kWarp;
  if (thread < kDigestTerms) {
    of_warp[lane.thread / kWarp][2 * thread] = term.low;
    of_warp[lane.thread / kWarp][2 * thread + 1] = term.high;
  }
  __nvvm_barrier_sync(0);
  if (lane.thread >= kWords) return;
  uint64_t sum = 0;
  for (uint32_t warp = 0; warp < lane.threads / kWarp; ++warp) sum += of_warp[warp][lane.thread];
  auto* const at = reinterpret_cast<long long*>(p.sums + 8 * lane.thread);
  __nvvm_atom_add_gen_ll(at, static_cast<long long>(sum));
}

WC_KERNEL hash_leaves(HashParameters p) {
  const Lane lane = ThisLane();
  const uint64_t leaves = LeavesOf(p.bytes);
  const auto mine = static_cast<uint32_t>(lane.thread % kLeafLanes);
  // All lanes of a warp take as many turns, since each hands its accumulator to others.
  const uint64_t turns = (leaves * kLeafLanes + kWarp - 1) / kWarp * kWarp;
  for (uint64_t i = lane.index(); i < turns; i += lane.count()) {
    const uint64_t leaf = i / kLeafLanes;
    const uint64_t bytes = leaf < leaves ? BytesOfLeaf(p, leaf) : 0;
    const uint64_t from = p.source + leaf * kLeafBytes;
    const uint64_t sum = HashStripes(mine, from, bytes);
    const uint64_t a = FromLeafLane(sum, 0);
    const uint64_t b = FromLeafLane(sum, 1);
    const uint64_t c = FromLeafLane(sum, 2);
    const uint64_t d = FromLeafLane(sum, 3);
    if (mine == 0 && leaf < leaves) Store<uint64_t>(p.sums + 8 * leaf, HashEnd(a, b, c, d, from, bytes));
  }
}

#define WC_CAST(name, From, To)                                                   \
  WC_KERNEL cast_##name(CastParameters p) { CastDense<From, To>(ThisLane(), p); } \
  WC_KERNEL gather_##name(GatherParameters p) { GatherCast<From, To>(ThisLane(), p); }
WC_CASTS(WC_CAST)

#define WC_WORD(name, Word) \
  WC_KERNEL gather_##name(GatherParameters p) { GatherUnits<CopyUnit<Word>>(ThisLane(), p); }
WC_WORDS(WC_WORD)

#define WC_FLOAT(name, From)                                               \
  WC_KERNEL quantise_blocks_##name(QuantiseBlocksParameters p) {           \
    if (IsWide<From>(p)) return QuantiseBlocks<From, true>(ThisLane(), p); \
    QuantiseBlocks<From, false>(ThisLane(), p);                            \
  }                                                                        \
  WC_KERNEL amax_##name(AmaxParameters p) { Amax<From>(p); }               \
  WC_KERNEL quantise_##name(QuantiseParameters p) { QuantiseDense<From>(ThisLane(), p); }
WC_FLOATS(WC_FLOAT)

}  // namespace weightcast::kernels
