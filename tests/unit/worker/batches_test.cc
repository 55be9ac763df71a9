#include "worker/batches.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "plan/quantise.h"
#include "worker/route_segments.h"
#include "worker/shards.h"

namespace weightcast::worker {
namespace {

using plan::RankTable;

/// A trainer's table of whole one-dimensional tensors, each to one peer.
RankTable TableOf(const std::vector<std::pair<int64_t, int>>& tensors, DType dtype = DType::kBF16) {
  RankTable table;
  for (const auto& [elements, peer] : tensors) {
    const auto index = static_cast<int>(table.source_tensors.size());
    const TensorInfo info{"t" + std::to_string(index), dtype, {elements}};
    table.source_tensors.push_back(info);
    table.destination_tensors.push_back(info);
    table.source_shards.push_back({0, index, WholeOf(info.shape)});
    table.destination_shards.push_back({peer, index, WholeOf(info.shape)});
    RankTable::Route route;
    route.peer = peer;
    route.src_shard = route.dst_shard = static_cast<uint32_t>(index);
    route.src_box = WholeOf(info.shape);
    route.dst_offset = {0};
    table.routes.push_back(route);
    if (std::find(table.peers.begin(), table.peers.end(), peer) == table.peers.end())
      table.peers.push_back(peer);
  }
  std::sort(table.peers.begin(), table.peers.end());
  return table;
}

int64_t AllBytes(const Batches& batches) { return batches.BytesOf({.first = 0, .end = batches.transfers()}); }

void ExpectExact(const RankTable& table) {
  const auto batches = CutIntoBatches(table);
  ASSERT_EQ(batches.size(), table.peers.size());
  std::vector<int64_t> next(table.routes.size(), 0);
  for (size_t p = 0; p < batches.size(); ++p) {
    int64_t total = 0;
    for (uint32_t t = 0; t < batches[p].transfers(); ++t) {
      int64_t bytes = 0;
      for (const Item& item : batches[p].Of(t)) {
        const auto& route = table.routes[item.route];
        EXPECT_EQ(route.peer, table.peers[p]);
        EXPECT_EQ(next[item.route], item.first) << "not consecutive";
        EXPECT_GT(item.count, 0);
        next[item.route] += item.count;
        bytes += BytesOf(table.destination_tensors[route.dst_shard].dtype, item.count);
      }
      EXPECT_EQ(bytes, batches[p].BytesOf(t));
      EXPECT_LT(bytes, kMaxTransferBytes);
      const bool last = t + 1 == batches[p].transfers();
      EXPECT_TRUE(last || bytes > kTransferBytes - 4096) << bytes;
      total += bytes;
    }
    EXPECT_EQ(total, AllBytes(batches[p]));
  }
  for (size_t r = 0; r < table.routes.size(); ++r)
    EXPECT_EQ(next[r], plan::ElementsOf(table.routes[r].src_box)) << "route " << r;
}

TEST(Batches, CoverEveryElementOnceInOrder) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::pair<int64_t, int>> tensors;
    for (int i = 0; i < 40; ++i) {
      const int64_t scale = int64_t{1} << (random() % 25);
      tensors.emplace_back(static_cast<int64_t>(random() % 1000) * scale / 1000,
                           static_cast<int>(random() % 3));
    }
    ExpectExact(TableOf(tensors));
  }
}

TEST(Batches, TensorsOfFourBitsAreCutAtWholeBytes) {
  const auto table = TableOf({{20'000'001, 0}, {7, 0}}, DType::kF4);
  const auto batches = CutIntoBatches(table);
  EXPECT_EQ(AllBytes(batches[0]), 10'000'001 + 4);
  for (uint32_t t = 0; t < batches[0].transfers(); ++t)
    for (const Item& item : batches[0].Of(t)) EXPECT_EQ(item.first % 2, 0);
}

TEST(Batches, NothingToSendIsNoTransfer) {
  const auto batches = CutIntoBatches(TableOf({{0, 0}}));
  EXPECT_EQ(batches[0].transfers(), 0U);
  EXPECT_EQ(AllBytes(batches[0]), 0);
}

TEST(Batches, EachPartHasTransfersOfItsOwn) {
  const auto table = TableOf({{1'000'000, 0}, {3'000'000, 0}, {10, 1}, {2'000'000, 0}, {0, 0}});
  const std::vector<uint32_t> parts = {2, 0, 1, 2, 1};
  const auto batches = CutIntoBatches(table, parts);
  const auto tensors_of = [&](size_t peer, uint32_t part) {
    std::vector<uint32_t> tensors;
    const TransferRange range = batches[peer].OfPart(part);
    for (uint32_t t = range.first; t < range.end; ++t)
      for (const Item& item : batches[peer].Of(t))
        if (tensors.empty() || tensors.back() != item.route) tensors.push_back(item.route);
    return tensors;
  };
  EXPECT_EQ(tensors_of(0, 0), std::vector<uint32_t>{1});
  EXPECT_EQ(tensors_of(0, 1), std::vector<uint32_t>{});
  EXPECT_EQ(tensors_of(0, 2), (std::vector<uint32_t>{0, 3}));
  EXPECT_EQ(tensors_of(1, 1), std::vector<uint32_t>{2});
  EXPECT_EQ(tensors_of(0, 7), std::vector<uint32_t>{});
  EXPECT_EQ(batches[0].BytesOf(batches[0].OfPart(2)), 2 * 3'000'000);
  EXPECT_EQ(AllBytes(batches[0]), 2 * 6'000'000);
}

TEST(Batches, ReceiverCutsAsTheSenderDoes) {
  const auto sender = TableOf({{5'000'000, 1}, {3'000'000, 0}, {10, 1}, {4'000'000, 1}});
  // What rank 1 is given: its own routes, in the same order.
  auto receiver = TableOf({{5'000'000, 1}, {10, 1}, {4'000'000, 1}});
  const auto a = CutIntoBatches(sender)[1];
  const auto b = CutIntoBatches(receiver)[0];
  ASSERT_EQ(a.transfers(), b.transfers());
  for (uint32_t t = 0; t < a.transfers(); ++t) {
    ASSERT_EQ(a.Of(t).size(), b.Of(t).size());
    for (size_t i = 0; i < a.Of(t).size(); ++i) {
      EXPECT_EQ(a.Of(t)[i].first, b.Of(t)[i].first);
      EXPECT_EQ(a.Of(t)[i].count, b.Of(t)[i].count);
    }
  }
}

TEST(Pieces, PartsOfARouteMakeUpTheWhole) {
  // Columns 16..48 of a [64, 80] tensor go into the middle of a [64, 40] shard.
  const auto segments = plan::Segments::Of({{0, 0}, {64, 80}}, DType::kF32, {{0, 10}, {64, 40}}, DType::kBF16,
                                           {{0, 16}, {64, 32}}, {0, 16});
  ASSERT_TRUE(segments.ok());
  const RouteSegments route{.segments = *segments, .elements = 64 * 32, .src_bits = 32, .dst_bits = 16};
  std::vector<int64_t> hits(64 * 40, 0);
  for (int64_t first = 0; first < route.elements; first += 100) {
    const Item item{0, first, std::min<int64_t>(100, route.elements - first)};
    int64_t expected = first;
    ForEachSegment(route, item, [&](const worker::ItemSegment& segment) {
      EXPECT_EQ(segment.dst_offset, (expected / 32 * 40 + 6 + expected % 32) * 2);
      EXPECT_EQ(segment.src_offset, (expected / 32 * 80 + 16 + expected % 32) * 4);
      expected += segment.dst_bytes / 2;
      for (int64_t b = 0; b < segment.dst_bytes / 2; ++b) ++hits[segment.dst_offset / 2 + b];
    });
    EXPECT_EQ(expected, first + item.count);
  }
  EXPECT_EQ(std::count(hits.begin(), hits.end(), 1), route.elements);
}

TEST(ShardKey, TellsNamesAndBoxesApart) {
  const uint64_t key = ShardKey("a", {{0, 0}, {1, 2}});
  EXPECT_EQ(key, ShardKey("a", {{0, 0}, {1, 2}}));
  EXPECT_NE(key, ShardKey("b", {{0, 0}, {1, 2}}));
  EXPECT_NE(key, ShardKey("a", {{0, 1}, {1, 2}}));
  EXPECT_NE(key, ShardKey("a", {{0}, {0, 1, 2}}));
  EXPECT_NE(key, ShardKey("a", {{0, 0}, {1, 2}}, 1));
  EXPECT_NE(ShardKey("a", {}, 1), ShardKey("a", {}, 2));
}

TEST(Batches, CutWhatIsQuantisedBetweenRowsOfBlocks) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    RankTable table;
    table.peers = {0};
    for (int index = 0; index < 4; ++index) {
      const Shape shape = {static_cast<int64_t>(1 + random() % 3000),
                           static_cast<int64_t>(1 + random() % plan::kMaxQuantisedColumns)};
      table.source_tensors.push_back({"t", DType::kBF16, shape});
      table.destination_tensors.push_back({"t", DType::kF8E4M3, shape});
      table.source_shards.push_back({0, index, WholeOf(shape)});
      table.destination_shards.push_back({0, index, WholeOf(shape)});
      RankTable::Route route;
      route.src_shard = route.dst_shard = static_cast<uint32_t>(index);
      route.src_box = WholeOf(shape);
      route.dst_offset = {0, 0};
      route.transform = plan::Transform::kQuantise;
      table.routes.push_back(route);
    }
    const auto batches = CutIntoBatches(table);
    std::vector<int64_t> next(table.routes.size(), 0);
    for (uint32_t t = 0; t < batches[0].transfers(); ++t) {
      EXPECT_LT(batches[0].BytesOf(t), kMaxTransferBytes);
      for (const Item& item : batches[0].Of(t)) {
        EXPECT_EQ(std::exchange(next[item.route], item.first + item.count), item.first);
        EXPECT_EQ(item.first % (128 * table.routes[item.route].src_box.size[1]), 0);
      }
    }
    for (size_t i = 0; i < next.size(); ++i) EXPECT_EQ(next[i], plan::ElementsOf(table.routes[i].src_box));
  }
}

}  // namespace
}  // namespace weightcast::worker
