#pragma once

#include "kernels/lane.h"

/// Many small copies in one launch.
namespace weightcast::kernels {

/// One copy of `length` bytes. Packed, so that as many as possible fit into a kernel's parameters.
struct __attribute__((packed, aligned(4))) CopyPiece {
  uint64_t source;
  uint64_t target;
  uint32_t length;
};
static_assert(sizeof(CopyPiece) == 20);

inline constexpr uint32_t kListPieces = 204;

/// Parameters of copy_list: the pieces themselves. 4,096 bytes is what a kernel's parameters may have.
struct CopyList {
  uint32_t count;
  uint32_t reserved;
  CopyPiece piece[kListPieces];
};
static_assert(sizeof(CopyList) == 4088);

/// Parameters of copy_pieces: the address of `count` CopyPiece, such as in pinned memory.
struct CopyPiecesParameters {
  uint64_t pieces;
  uint32_t count;
  uint32_t reserved;
};

/// The accesses of a lane in a tile that are under way at once.
inline constexpr uint32_t kTileSteps = 8;

/// Copies this lane's words of one tile; `target` is a multiple of sizeof(Word), `source` too.
template <typename Word>
void CopyTile(uint32_t lane_in_warp, uint64_t source, uint64_t target, uint64_t words) {
  if (words >= uint64_t{kWarp} * kTileSteps) {
    Word word[kTileSteps];
    WC_UNROLL for (uint32_t i = 0; i < kTileSteps; ++i) word[i] =
        Load<Word>(source + (lane_in_warp + i * kWarp) * sizeof(Word));
    WC_UNROLL for (uint32_t i = 0; i < kTileSteps; ++i)
        Store<Word>(target + (lane_in_warp + i * kWarp) * sizeof(Word), word[i]);
    return;
  }
  for (uint64_t i = lane_in_warp; i < words; i += kWarp)
    Store<Word>(target + i * sizeof(Word), Load<Word>(source + i * sizeof(Word)));
}

/// Hands out tiles to warps in turn, over all pieces of a launch, so that each warp gets as many.
class TileTurn {
 public:
  explicit TileTurn(Lane lane)
      : lane_in_warp_(lane.thread % kWarp), next_(lane.index() / kWarp), warps_(lane.count() / kWarp) {}

  /// Copies this lane's part of the next piece.
  void Copy(CopyPiece piece) {
    const uint64_t source = piece.source;
    const uint64_t target = piece.target;
    const uint64_t apart = source ^ target;
    if ((apart & 15) == 0) return CopyAs<Vector>(source, target, piece.length);
    if ((apart & 7) == 0) return CopyAs<uint64_t>(source, target, piece.length);
    if ((apart & 3) == 0) return CopyAs<uint32_t>(source, target, piece.length);
    if ((apart & 1) == 0) return CopyAs<uint16_t>(source, target, piece.length);
    CopyAs<uint8_t>(source, target, piece.length);
  }

 private:
  /// Bytes up to the first and behind the last whole word go with the piece's first tile.
  template <typename Word>
  void CopyAs(uint64_t source, uint64_t target, uint32_t length) {
    constexpr uint32_t kTile = kWarp * kTileSteps;
    const uint32_t to_word = static_cast<uint32_t>(-target & (sizeof(Word) - 1));
    const uint32_t head = to_word < length ? to_word : length;
    constexpr uint32_t kWord = sizeof(Word);
    const uint32_t words = (length - head) / kWord;
    const uint32_t tail = (length - head) % kWord;
    const uint64_t end = first_ + (words < kTile ? 1 : (words + kTile - 1) / kTile);
    for (; next_ < end; next_ += warps_) {
      const auto begin = static_cast<uint32_t>(next_ - first_) * kTile;
      const uint64_t at = head + uint64_t{begin} * sizeof(Word);
      CopyTile<Word>(lane_in_warp_, source + at, target + at, words - begin);
      if (next_ != first_) continue;
      if (lane_in_warp_ < head) CopyByte(source, target, lane_in_warp_);
      if (lane_in_warp_ < tail) CopyByte(source, target, length - 1 - lane_in_warp_);
    }
    first_ = end;
  }

  static void CopyByte(uint64_t source, uint64_t target, uint32_t at) {
    Store<uint8_t>(target + at, Load<uint8_t>(source + at));
  }

  uint32_t lane_in_warp_;
  uint64_t first_ = 0;  ///< Number of the next piece's first tile.
  uint64_t next_;       ///< Number of this warp's next tile.
  uint64_t warps_;
};

}  // namespace weightcast::kernels
