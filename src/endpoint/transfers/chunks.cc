#include "endpoint/transfers/chunks.h"

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

void ChunkCounter::Add(uint64_t length) {
  while (length > 0) {
    if (left_ == 0 || parts_ == kMaxPartsPerChunk) {
      ++count_;
      left_ = chunk_bytes_;
      parts_ = 0;
    }
    ++parts_;
    const uint64_t taken = std::min(length, left_);
    left_ -= taken;
    length -= taken;
  }
}

uint64_t CountChunks(std::span<const PlacedPiece> pieces, uint64_t chunk_bytes) {
  ChunkCounter counter(chunk_bytes);
  for (const PlacedPiece& piece : pieces) counter.Add(piece.length);
  return counter.count();
}

}  // namespace weightcast
