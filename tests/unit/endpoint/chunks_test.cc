#include "endpoint/transfers/chunks.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace weightcast {
namespace {

std::vector<PlacedPiece> PiecesOf(const std::vector<uint64_t>& lengths) {
  std::vector<PlacedPiece> pieces;
  for (const uint64_t length : lengths) pieces.push_back({.length = length});
  return pieces;
}

TEST(Chunks, CoverEveryByteOnceInOrder) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<uint64_t> lengths(random() % 400);
    for (auto& length : lengths) length = random() % 3 == 0 ? 0 : random() % (random() % 2 == 0 ? 10 : 5000);
    const auto pieces = PiecesOf(lengths);
    const uint64_t chunk_bytes = 1 + random() % 3000;
    const uint64_t limit = round % 2 == 0 ? UINT64_MAX : 1 + random() % 100;
    uint64_t chunks = 0;
    uint32_t piece = 0;
    uint64_t offset = 0;
    ChunkCursor at;
    while (true) {
      ChunkWalk walk(pieces, chunk_bytes, at);
      uint64_t bytes = 0;
      std::vector<uint32_t> touched;
      while (true) {
        const bool at_end = walk.AtEnd();
        const auto part = walk.Next(limit);
        EXPECT_EQ(at_end, !part.has_value());
        if (!part) break;
        while (offset == lengths[piece]) {
          ++piece;
          offset = 0;
        }
        ASSERT_EQ(part->piece, piece);
        ASSERT_EQ(part->offset, offset);
        ASSERT_GT(part->length, 0U);
        ASSERT_LE(part->length, limit);
        offset += part->length;
        bytes += part->length;
        if (touched.empty() || touched.back() != piece) touched.push_back(piece);
      }
      if (bytes == 0) break;
      ++chunks;
      EXPECT_LE(bytes, chunk_bytes);
      EXPECT_LE(touched.size(), kMaxPartsPerChunk);
      at = walk.cursor();
    }
    while (piece < lengths.size() && offset == lengths[piece]) {
      ++piece;
      offset = 0;
    }
    EXPECT_EQ(piece, lengths.size());
    EXPECT_EQ(CountChunks(pieces, chunk_bytes), std::max<uint64_t>(chunks, 1));
  }
}

TEST(Chunks, DoNotDependOnHowOperationsAreCut) {
  const auto pieces = PiecesOf({10, 0, 100, 3, 50});
  ChunkWalk whole(pieces, 60, {});
  while (whole.Next()) {
  }
  ChunkWalk small(pieces, 60, {});
  while (small.Next(7)) {
  }
  EXPECT_EQ(whole.cursor(), small.cursor());
}

TEST(Chunks, SmallPiecesShareOne) {
  EXPECT_EQ(CountChunks(PiecesOf(std::vector<uint64_t>(100, 8)), 4096), 1U);
  EXPECT_EQ(CountChunks(PiecesOf(std::vector<uint64_t>(kMaxPartsPerChunk + 1, 8)), 4096), 2U);
  EXPECT_EQ(CountChunks(PiecesOf({4096, 4096}), 4096), 2U);
  EXPECT_EQ(CountChunks(PiecesOf({1, 4096}), 4096), 2U);
  EXPECT_EQ(CountChunks({}, 4096), 1U);
  EXPECT_EQ(CountChunks(PiecesOf({0, 0}), 4096), 1U);
}

}  // namespace
}  // namespace weightcast
