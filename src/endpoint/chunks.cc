#include "endpoint/chunks.h"

#include <algorithm>

namespace weightcast {

std::optional<ChunkPart> ChunkWalk::Next(uint64_t limit) {
  while (at_.piece < pieces_.size() && at_.offset == pieces_[at_.piece].length) {
    at_ = {at_.piece + 1, 0};
    in_part_ = false;
  }
  if (at_.piece == pieces_.size() || left_ == 0) return std::nullopt;
  if (!in_part_) {
    if (parts_ == kMaxPartsPerChunk) return std::nullopt;
    ++parts_;
    in_part_ = true;
  }
  const uint64_t length = std::min({pieces_[at_.piece].length - at_.offset, left_, limit});
  const ChunkPart part{at_.piece, at_.offset, length};
  at_.offset += length;
  left_ -= length;
  return part;
}

bool ChunkWalk::AtEnd() const {
  ChunkWalk ahead = *this;
  return !ahead.Next().has_value();
}

uint64_t CountChunks(std::span<const PlacedPiece> pieces, uint64_t chunk_bytes) {
  uint64_t count = 0;
  ChunkCursor at;
  while (true) {
    ChunkWalk walk(pieces, chunk_bytes, at);
    bool any = false;
    while (walk.Next()) any = true;
    if (!any) return std::max<uint64_t>(count, 1);
    ++count;
    at = walk.cursor();
  }
}

}  // namespace weightcast
