#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

namespace weightcast {

/// One contiguous piece of a transfer, as transports address it: offsets count from the registration's first
/// byte.
struct PlacedPiece {
  uint32_t local_region = 0;
  uint32_t remote_region = 0;  ///< The transport's handle.
  uint64_t local_offset = 0;
  uint64_t remote_offset = 0;
  uint64_t length = 0;
};

/// A place in a list of pieces: this many bytes into this piece.
struct ChunkCursor {
  uint32_t piece = 0;
  uint64_t offset = 0;
  friend bool operator==(const ChunkCursor&, const ChunkCursor&) = default;
};

/// A contiguous part of one piece.
struct ChunkPart {
  uint32_t piece = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};

/// How a transfer falls into chunks; the same on both sides, so that a target that knows the pieces (from
/// its source table) can find the bytes of chunk n. The pieces' bytes stand in a row; a chunk takes up to
/// `chunk_bytes` of them, from at most kMaxPartsPerChunk pieces. Empty pieces count for nothing. A transfer
/// without bytes is one empty chunk.
inline constexpr uint32_t kMaxPartsPerChunk = 128;
/// Chunks of a transfer that goes to device memory alone: a device's copy costs more to begin and to end than
/// to make. `chunk`: the setting of the side that cuts.
constexpr uint64_t DeviceChunk(uint64_t chunk) {
  constexpr uint64_t kMost = uint64_t{64} << 20;
  return chunk >= kMost / 16 ? std::max(chunk, kMost) : chunk * 16;
}
/// More than any transfer may have: limits what a target keeps for one.
inline constexpr uint32_t kMaxChunks = 1U << 24;

/// Walks the parts of one chunk.
class ChunkWalk {
 public:
  ChunkWalk() = default;
  /// The chunk that begins at `begin`.
  ChunkWalk(std::span<const PlacedPiece> pieces, uint64_t chunk_bytes, ChunkCursor begin)
      : pieces_(pieces), left_(chunk_bytes), at_(begin) {}
  /// The next part, at most `limit` bytes of it; nothing at the end of the chunk. A part cut by the limit
  /// counts once.
  std::optional<ChunkPart> Next(uint64_t limit = UINT64_MAX);
  /// True if Next would give nothing.
  [[nodiscard]] bool AtEnd() const;
  /// Where the next part, or the next chunk, begins.
  [[nodiscard]] ChunkCursor cursor() const { return at_; }

 private:
  std::span<const PlacedPiece> pieces_;
  uint64_t left_ = 0;
  uint32_t parts_ = 0;
  bool in_part_ = false;  ///< The last part given was cut short by a limit.
  ChunkCursor at_;
};

/// How many chunks ChunkWalk cuts from pieces of which the lengths alone are known.
class ChunkCounter {
 public:
  explicit ChunkCounter(uint64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}
  /// The next piece.
  void Add(uint64_t length);
  [[nodiscard]] uint64_t count() const { return std::max<uint64_t>(count_, 1); }

 private:
  uint64_t chunk_bytes_;
  uint64_t left_ = 0;  ///< Of the last chunk.
  uint32_t parts_ = 0;
  uint64_t count_ = 0;
};

/// Chunks of the whole list; 1 for one without bytes.
uint64_t CountChunks(std::span<const PlacedPiece> pieces, uint64_t chunk_bytes);

}  // namespace weightcast
