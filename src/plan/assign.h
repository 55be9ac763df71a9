#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/fair_share.h"
#include "plan/pieces.h"

namespace weightcast::plan {

/// A piece, or a part of one, and who sends it.
struct Shipment {
  uint32_t piece;
  uint32_t link;
  int32_t src_rank;
  RankCopy to;
  uint32_t coord;  ///< Of its box in the list's coords.
  int64_t bytes;
};

/// Piece by piece, the holder with the fewest bytes so far; among equals the lowest rank.
std::vector<Shipment> AssignGreedy(const PieceList& list, int ranks);

/// Every holder its fair share. The pieces of a replica set are laid end to end by destination, and
/// each member takes the next stretch: few pairs of ranks talk to each other, and at most one piece
/// per member is cut, into contiguous parts. A stretch may end up to `slack` bytes from where it
/// should, so that no piece is cut to save less. Appends the boxes of cut pieces to `list`.
std::vector<Shipment> AssignBalanced(PieceList& list, const FairShare& share, int64_t slack);

/// Bytes that each of `ranks` sends.
std::vector<int64_t> BytesPerSender(std::span<const Shipment> shipments, int ranks);

/// Elements [first, last) of a box in row-major order, as boxes each of which is contiguous in it:
/// one where both ends fall between rows of dimension 0. Appends offsets and sizes per box to `out`.
void CutRowMajor(std::span<const int64_t> offset, std::span<const int64_t> size, int64_t first, int64_t last,
                 LargeVector<int64_t>& out);

}  // namespace weightcast::plan
