#include "worker/read_item.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

namespace weightcast::worker {
namespace {

constexpr int64_t kShardRows = 5000, kShardColumns = 64;  // 640,000 bytes: more than are read at a time.
constexpr int64_t kFrom = 16, kWide = 40;                 // The columns that a destination takes.

/// One shard of uint16_t, 0, 1, 2, ...; refuses what lies outside of it.
class Numbers final : public ShardReader {
 public:
  Numbers() : values_(kShardRows * kShardColumns) { std::iota(values_.begin(), values_.end(), uint16_t{0}); }

  Status Read(size_t shard, uint64_t offset, std::span<std::byte> out) override {
    const auto bytes = std::as_bytes(std::span(values_));
    if (shard != 3 || offset > bytes.size() || out.size() > bytes.size() - offset)
      return {Code::kOutOfBounds, "outside of the shard"};
    std::memcpy(out.data(), bytes.data() + offset, out.size());
    ++reads;
    return Status::Ok();
  }
  Status Check() override { return Status::Ok(); }

  int reads = 0;

 private:
  std::vector<uint16_t> values_;
};

/// Elements [first, first + count) of the columns, as `Element`.
template <typename Element>
std::vector<Element> ReadColumns(Numbers& reader, DType from, DType to, int64_t first, int64_t count) {
  const Box whole{{0, 0}, {kShardRows, kShardColumns}};
  const auto segments = plan::Segments::Of(whole, from, {{0, 0}, {kShardRows, kWide}}, to,
                                           {{0, kFrom}, {kShardRows, kWide}}, {0, 0});
  EXPECT_TRUE(segments.ok());
  const RouteSegments route{.segments = *segments,
                            .elements = kShardRows * kWide,
                            .src_bits = 16,
                            .dst_bits = 8 * static_cast<int>(sizeof(Element))};
  const Shard shard{.tensor = {"w", from, {kShardRows, kShardColumns}}, .part = whole};
  std::vector<Element> read(static_cast<size_t>(count));
  const Status status = ReadItem(reader, 3, shard, route, {.first = first, .count = count}, to,
                                 reinterpret_cast<std::byte*>(read.data()));
  EXPECT_TRUE(status.ok()) << status.ToString();
  return read;
}

/// Where element `index` of the columns lies in the shard.
uint16_t At(int64_t index) {
  return static_cast<uint16_t>(index / kWide * kShardColumns + kFrom + index % kWide);
}

TEST(ReadItemTest, ThinColumnsAreReadTogetherUpToTheEndOfTheShard) {
  Numbers reader;
  const auto read = ReadColumns<uint16_t>(reader, DType::kBF16, DType::kBF16, 0, kShardRows * kWide);
  for (int64_t i = 0; i < kShardRows * kWide; ++i) ASSERT_EQ(read[static_cast<size_t>(i)], At(i)) << i;
  EXPECT_LT(reader.reads, 10);
}

TEST(ReadItemTest, PartsMayBeginAndEndWithinARow) {
  for (const int64_t first : {int64_t{0}, int64_t{7}, kShardRows * kWide - 90}) {
    Numbers reader;
    const auto read = ReadColumns<uint16_t>(reader, DType::kBF16, DType::kBF16, first, 90);
    for (int64_t i = 0; i < 90; ++i) ASSERT_EQ(read[static_cast<size_t>(i)], At(first + i)) << first;
  }
}

TEST(ReadItemTest, ElementsAreCastOneByOne) {
  Numbers reader;
  const auto read = ReadColumns<float>(reader, DType::kBF16, DType::kF32, 0, kShardRows * kWide);
  for (int64_t i = 0; i < kShardRows * kWide; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &read[static_cast<size_t>(i)], sizeof bits);
    const uint32_t expected = uint32_t{At(i)} << 16;
    if (std::isnan(read[static_cast<size_t>(i)])) continue;  // Which NaN is not promised.
    ASSERT_EQ(bits, expected) << i;
  }
}

TEST(ReadItemTest, AnErrorOfTheReaderIsReturned) {
  Numbers reader;
  const Box whole{{0}, {4}};
  const auto segments = plan::Segments::Of(whole, DType::kU8, whole, DType::kU8, whole, {0});
  const RouteSegments route{.segments = *segments, .elements = 4, .src_bits = 8, .dst_bits = 8};
  const Shard shard{.tensor = {"w", DType::kU8, {4}}, .part = whole};
  std::byte target[4];
  EXPECT_EQ(ReadItem(reader, 0, shard, route, {.first = 0, .count = 4}, DType::kU8, target).code(),
            Code::kOutOfBounds);
}

}  // namespace
}  // namespace weightcast::worker
