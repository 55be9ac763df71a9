#include <gtest/gtest.h>

#include "transport/shm/gathered_copies.h"

namespace weightcast::transport::shm {
namespace {

using device::Copy;
using device::Ends;

std::byte* At(uint64_t address) { return reinterpret_cast<std::byte*>(address); }
constexpr uint64_t kThere = uint64_t{1} << 40;

Copy Of(uint64_t offset, uint64_t length, Ends ends = Ends::kDevices) {
  return {.to = At(kThere + offset), .from = At(4096 + offset), .length = length, .ends = ends};
}

TEST(GatheredCopiesTest, JoinsWhatGoesOnAtBothEnds) {
  GatheredCopies batch;
  EXPECT_TRUE(batch.empty());
  batch.Add(Of(0, 100), false);
  batch.Add(Of(100, 50), true);
  batch.Add(Of(150, 7), true);
  ASSERT_EQ(batch.copies().size(), 1U);
  EXPECT_EQ(batch.copies()[0].to, At(kThere));
  EXPECT_EQ(batch.copies()[0].from, At(4096));
  EXPECT_EQ(batch.copies()[0].length, 157U);
  EXPECT_EQ(batch.pieces(), 3U);
  EXPECT_EQ(batch.bytes(), 157U);
}

TEST(GatheredCopiesTest, JoinsNothingElse) {
  GatheredCopies batch;
  batch.Add(Of(0, 100), false);
  batch.Add(Of(100, 100), false);  // Another region.
  batch.Add(Of(201, 100), true);   // A gap.
  Copy shifted = Of(301, 100);
  ++shifted.from;
  batch.Add(shifted, true);  // Goes on at one end only.
  batch.Add({.to = shifted.to + 100, .from = shifted.from + 100, .length = 5, .ends = Ends::kOneDevice},
            true);
  EXPECT_EQ(batch.copies().size(), 5U);
}

TEST(GatheredCopiesTest, IsFullByBytesAndByPieces) {
  GatheredCopies bytes;
  bytes.Add(Of(0, kDevicePiece - 1), false);
  EXPECT_FALSE(bytes.full());
  EXPECT_EQ(bytes.room(), 1U);
  bytes.Add(Of(kDevicePiece - 1, 1), true);
  EXPECT_TRUE(bytes.full());
  GatheredCopies pieces;
  for (uint64_t i = 0; i < kDeviceBatch; ++i) {
    EXPECT_FALSE(pieces.full());
    pieces.Add(Of(i, 1), true);
  }
  EXPECT_TRUE(pieces.full()) << "though they are one copy";
}

TEST(GatheredCopiesTest, KnowsWhichBytesItWrites) {
  GatheredCopies batch;
  batch.Add(Of(100, 100), false);
  EXPECT_FALSE(batch.Touches(At(kThere), 100));
  EXPECT_TRUE(batch.Touches(At(kThere), 101));
  EXPECT_TRUE(batch.Touches(At(kThere + 150), 1));
  EXPECT_TRUE(batch.Touches(At(kThere), 1000));
  EXPECT_FALSE(batch.Touches(At(kThere + 200), 100));
  EXPECT_FALSE(batch.Touches(At(4196), 100)) << "read";
}

}  // namespace
}  // namespace weightcast::transport::shm
