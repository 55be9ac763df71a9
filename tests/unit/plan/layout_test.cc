#include "plan/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "plan/layout_builder.h"
#include "plan/pattern.h"

namespace weightcast::plan {
namespace {

using ::testing::HasSubstr;

/// Boxes of the ranks of one tensor.
using Held = std::map<int, Box>;

Held HeldOf(const Layout& layout, int tensor) {
  Held held;
  layout.ForEachBox(tensor, [&](int rank, const Box& box) { held[rank] = box; });
  return held;
}

/// A layout of one tensor out of the boxes of ranks 0..; an empty box where a rank is left out.
Result<Layout> LayoutOf(const TensorInfo& tensor, int ranks, const Held& held) {
  LayoutBuilder builder(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Holding> holdings;
    if (held.contains(rank)) holdings.push_back({tensor, held.at(rank)});
    WC_RETURN_IF_ERROR(builder.AddRank(rank, holdings));
  }
  return builder.Build();
}

const TensorInfo kSquare{"w", DType::kBF16, {8, 8}};

TEST(PatternTest, CutsLikeTorchChunk) {
  // torch.chunk of 10 rows in 4: 3, 3, 3, 1; in 8: five chunks of 2, then nothing.
  LayoutBuilder builder(8);
  ASSERT_TRUE(builder.AddPattern({"a", DType::kF32, {10}}, {.mesh = {{.size = 4, .shard_dim = 0}}}).ok());
  ASSERT_TRUE(builder.AddPattern({"b", DType::kF32, {10}}, {.mesh = {{.size = 8, .shard_dim = 0}}}).ok());
  const auto layout = builder.Build();
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(HeldOf(*layout, 0), (Held{{0, {{0}, {3}}}, {1, {{3}, {3}}}, {2, {{6}, {3}}}, {3, {{9}, {1}}}}));
  EXPECT_EQ(HeldOf(*layout, 1).size(), 5U);
  EXPECT_EQ(layout->BoxOf(1, 4), (Box{{8}, {2}}));
  EXPECT_EQ(layout->BoxOf(1, 5), std::nullopt);
}

TEST(PatternTest, SeveralMeshDimensionsOfOneTensorDimensionNest) {
  // Outer cut of 7 into 4 + 3, then each in 2: 2 + 2 and 2 + 1.
  LayoutBuilder builder(4);
  ASSERT_TRUE(builder
                  .AddPattern({"a", DType::kF32, {7}}, {.mesh = {{.size = 2, .stride = 2, .shard_dim = 0},
                                                                 {.size = 2, .shard_dim = 0}}})
                  .ok());
  const auto layout = builder.Build();
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(HeldOf(*layout, 0), (Held{{0, {{0}, {2}}}, {1, {{2}, {2}}}, {2, {{4}, {2}}}, {3, {{6}, {1}}}}));
}

TEST(PatternTest, RanksOfAMeshComeInRisingOrderWhateverTheStrides) {
  LayoutBuilder builder(12);
  const Pattern pattern{
      .first_rank = 1,
      .mesh = {{.size = 2, .stride = 1, .shard_dim = 0}, {.size = 3, .stride = 4, .shard_dim = 1}}};
  ASSERT_TRUE(builder.AddPattern({"a", DType::kF32, {4, 6}}, pattern).ok());
  const auto layout = builder.Build();
  ASSERT_TRUE(layout.ok());
  std::vector<int> ranks;
  layout->ForEachBox(0, [&](int rank, const Box& box) {
    ranks.push_back(rank);
    EXPECT_EQ(layout->BoxOf(0, rank), box);
  });
  EXPECT_EQ(ranks, (std::vector<int>{1, 2, 5, 6, 9, 10}));
  EXPECT_EQ(layout->BoxOf(0, 6), (Box{{2, 2}, {2, 2}}));
  for (const int rank : {0, 3, 4, 11}) EXPECT_EQ(layout->BoxOf(0, rank), std::nullopt) << rank;
}

TEST(PatternTest, RefusesMeshesThatGiveTwoPlacesOneRank) {
  EXPECT_TRUE(CheckPattern({.mesh = {{.size = 2, .stride = 3}, {.size = 3}}}, 1, 6).ok());
  EXPECT_FALSE(CheckPattern({.mesh = {{.size = 2, .stride = 2}, {.size = 3}}}, 1, 6).ok());
  EXPECT_FALSE(CheckPattern({.mesh = {{.size = 7}}}, 1, 6).ok());
  EXPECT_FALSE(CheckPattern({.first_rank = -1, .mesh = {{.size = 2}}}, 1, 6).ok());
  EXPECT_FALSE(CheckPattern({.mesh = {{.size = 2, .shard_dim = 1}}}, 1, 6).ok());
  EXPECT_FALSE(CheckPattern({.mesh = {{.size = 0}}}, 1, 6).ok());
  EXPECT_FALSE(CheckPattern({.mesh = std::vector<MeshDim>(kMaxMeshDims + 1)}, 1, 6).ok());
}

TEST(LayoutBuilderTest, RecognisesReplicatedShardsAndKeepsThemAsAPattern) {
  // Two replicas of four column shards: ranks 0..3 and 4..7.
  Held held;
  for (int rank = 0; rank < 8; ++rank) held[rank] = {{0, rank % 4 * 2}, {8, 2}};
  const auto layout = LayoutOf(kSquare, 8, held);
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  ASSERT_EQ(layout->patterns().size(), 1U);
  EXPECT_EQ(layout->patterns()[0],
            (Pattern{.mesh = {{.size = 2, .stride = 4}, {.size = 4, .stride = 1, .shard_dim = 1}}}));
  EXPECT_EQ(HeldOf(*layout, 0), held);
}

TEST(LayoutBuilderTest, RecognisesUnevenShardsOfFewerRanksThanThereAre) {
  const auto layout =
      LayoutOf({"w", DType::kF32, {10}}, 8,
               {{0, {{0}, {2}}}, {1, {{2}, {2}}}, {2, {{4}, {2}}}, {3, {{6}, {2}}}, {4, {{8}, {2}}}});
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  EXPECT_EQ(layout->patterns().size(), 1U);
}

TEST(LayoutBuilderTest, KeepsIrregularBoxesAsTheyAre) {
  const Held held = {
      {0, {{0, 0}, {3, 8}}}, {1, {{3, 0}, {5, 5}}}, {3, {{3, 5}, {5, 3}}}, {4, {{3, 5}, {5, 3}}}};
  const auto layout = LayoutOf(kSquare, 5, held);
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  EXPECT_TRUE(layout->patterns().empty());
  EXPECT_EQ(HeldOf(*layout, 0), held);
  for (int rank = 0; rank < 5; ++rank)
    EXPECT_EQ(layout->BoxOf(0, rank), held.contains(rank) ? std::optional(held.at(rank)) : std::nullopt);
  EXPECT_EQ(layout->BytesOfRank(1), 50);
}

TEST(LayoutBuilderTest, NamesBothSidesOfAnOverlap) {
  const auto layout = LayoutOf(kSquare, 2, {{0, {{0, 0}, {5, 8}}}, {1, {{4, 0}, {4, 8}}}});
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.status().code(), Code::kInvalidArgument);
  for (const char* part : {"'w'", "[0:5, 0:8]", "[4:8, 0:8]", "rank 0", "rank 1", "overlaps"})
    EXPECT_THAT(layout.status().message(), HasSubstr(part));
}

TEST(LayoutBuilderTest, NamesAMissingBox) {
  const auto layout =
      LayoutOf(kSquare, 3, {{0, {{0, 0}, {4, 8}}}, {1, {{4, 0}, {2, 8}}}, {2, {{6, 0}, {2, 5}}}});
  ASSERT_FALSE(layout.ok());
  EXPECT_THAT(layout.status().message(), HasSubstr("'w'"));
  EXPECT_THAT(layout.status().message(), HasSubstr("[6:8, 5:8]"));
  EXPECT_THAT(LayoutOf(kSquare, 1, {{0, {{0, 0}, {0, 8}}}}).status().message(),
              HasSubstr("no rank holds any"));
}

TEST(LayoutBuilderTest, ShowsBothWhenRanksDisagree) {
  LayoutBuilder builder(3);
  ASSERT_TRUE(builder.AddRank(0, {{{kSquare, WholeOf({8, 8})}}}).ok());
  const TensorInfo other{"w", DType::kF32, {8, 9}};
  const Status status = builder.AddRank(2, {{{other, WholeOf({8, 9})}}});
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  for (const char* part : {"'w'", "BF16 [8, 8] on rank 0", "F32 [8, 9] on rank 2"})
    EXPECT_THAT(status.message(), HasSubstr(part));
  // The refused rank may try again.
  EXPECT_TRUE(builder.AddRank(2, {}).ok());
  EXPECT_THAT(builder.Build().status().message(), HasSubstr("rank 1 of 3"));
  EXPECT_TRUE(builder.AddRank(1, {}).ok());
  EXPECT_TRUE(builder.Build().ok());
}

TEST(LayoutBuilderTest, ARankMayHoldSeveralBoxesInAnyOrder) {
  // As an engine's ranks hold [q_r; k_r; v_r]; rank 1 has its k twice.
  const auto rows = [](int64_t first, int64_t count) { return Holding{kSquare, {{first, 0}, {count, 8}}}; };
  LayoutBuilder builder(4);
  ASSERT_TRUE(builder.AddRank(0, {{rows(6, 1), rows(0, 2), rows(4, 1)}}).ok());
  ASSERT_TRUE(builder.AddRank(1, {{rows(5, 1), rows(7, 1), rows(2, 2), rows(5, 1)}}).ok());
  ASSERT_TRUE(builder.AddRank(2, {}).ok());
  ASSERT_TRUE(builder.AddRank(3, {{rows(4, 1), rows(3, 0)}}).ok());
  const auto layout = builder.Build();
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  EXPECT_TRUE(layout->several());
  const auto boxes = [&](int rank) { return layout->BoxesOf(0, rank); };
  EXPECT_EQ(boxes(0), (std::vector<Box>{rows(0, 2).box, rows(4, 1).box, rows(6, 1).box}));
  EXPECT_EQ(boxes(1), (std::vector<Box>{rows(2, 2).box, rows(5, 1).box, rows(5, 1).box, rows(7, 1).box}));
  EXPECT_EQ(boxes(2), std::vector<Box>());
  EXPECT_EQ(boxes(3), (std::vector<Box>{rows(4, 1).box}));
  EXPECT_EQ(layout->BytesOfRank(1), 5 * 8 * 2);
  const RankBoxes held = layout->FindCoords(0, 1);
  ASSERT_EQ(held.count, 4U);
  const auto find = [&](Shape at, uint32_t copy) { return held.Find(at, copy); };
  EXPECT_EQ(find({3, 7}, 0), 0U);
  EXPECT_EQ(find({5, 0}, 0), 1U);
  EXPECT_EQ(find({5, 0}, 1), 2U);
  EXPECT_EQ(find({5, 0}, 2), held.count);
  EXPECT_EQ(find({3, 7}, 1), held.count);
  EXPECT_EQ(find({4, 0}, 0), held.count);
  EXPECT_EQ(find({0, 0}, 0), held.count);
}

TEST(LayoutBuilderTest, ARankFindsItsBoxAmongThoseOfAGrid) {
  LayoutBuilder builder(1);
  std::vector<Holding> cells;
  for (int64_t cell = 0; cell < 16; ++cell)
    cells.push_back({kSquare, {{cell % 4 * 2, cell / 4 * 2}, {2, 2}}});
  ASSERT_TRUE(builder.AddRank(0, cells).ok());
  const auto layout = builder.Build();
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  Box box;
  for (int64_t row = 0; row < 8; ++row) {
    for (int64_t column = 0; column < 8; ++column) {
      ASSERT_TRUE(layout->FindBox(0, 0, Shape{row, column}, box));
      EXPECT_EQ(box, (Box{{row / 2 * 2, column / 2 * 2}, {2, 2}}));
    }
  }
}

TEST(LayoutBuilderTest, RefusesBoxesOfOneRankThatOverlapInPart) {
  LayoutBuilder builder(4);
  const Status status = builder.AddRank(3, {{{kSquare, {{4, 0}, {4, 8}}}, {kSquare, {{0, 0}, {5, 8}}}}});
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  for (const char* part : {"'w'", "[0:5, 0:8]", "[4:8, 0:8]", "of rank 3 overlap"})
    EXPECT_THAT(status.message(), HasSubstr(part));
  const Holding other{{"w", DType::kF32, {8, 8}}, {{4, 0}, {4, 8}}};
  EXPECT_THAT(builder.AddRank(3, {{{kSquare, {{0, 0}, {4, 8}}}, other}}).message(),
              HasSubstr("BF16 [8, 8] in one shard of rank 3 and F32 [8, 8] in another"));
  EXPECT_TRUE(builder.AddRank(3, {{{kSquare, {{0, 0}, {4, 8}}}}}).ok()) << "the refused rank may try again";
}

TEST(LayoutBuilderTest, CountsCopiesOnlyAsFarAsTheyCanBeNumbered) {
  const TensorInfo scalar{"s", DType::kI64, {}};
  for (const int copies : {kMaxCopies, kMaxCopies + 1}) {
    LayoutBuilder builder(1);
    const std::vector<Holding> same(static_cast<size_t>(copies), {scalar, {}});
    ASSERT_TRUE(builder.AddRank(0, same).ok());
    const auto layout = builder.Build();
    ASSERT_EQ(layout.ok(), copies == kMaxCopies);
    if (layout.ok()) {
      EXPECT_EQ(layout->FindCoords(0, 0).Find({}, 7), 7U);
    } else {
      EXPECT_THAT(layout.status().message(), HasSubstr("'s': rank 0 holds the box [] more than 4096 times"));
    }
  }
}

TEST(LayoutBuilderTest, RefusesRanksAndPatternsGivenTwice) {
  LayoutBuilder builder(2);
  const Holding whole{kSquare, WholeOf({8, 8})};
  ASSERT_TRUE(builder.AddRank(0, {{whole}}).ok());
  EXPECT_THAT(builder.AddRank(0, {{whole}}).message(), HasSubstr("rank 0 is given twice"));
  EXPECT_THAT(builder.AddRank(2, {}).message(), HasSubstr("outside 0..1"));
  EXPECT_THAT(builder.AddRank(-1, {}).message(), HasSubstr("outside 0..1"));
  EXPECT_FALSE(builder.AddPattern(kSquare, {.mesh = {{.size = 2}}}).ok());
  EXPECT_FALSE(LayoutBuilder(0).AddRank(0, {}).ok());
}

TEST(LayoutBuilderTest, TensorsNotSentNeedNotBeWhole) {
  LayoutBuilder builder(1);
  builder.DeclareNotSent("w");
  builder.DeclareNotSent("nobody has this");
  ASSERT_TRUE(builder.AddRank(0, {{{kSquare, {{0, 0}, {1, 1}}}}}).ok());
  const auto layout = builder.Build();
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  EXPECT_TRUE(layout->not_sent(0));
}

TEST(LayoutTest, FindsTensorsByName) {
  LayoutBuilder builder(1);
  for (const char* name : {"b", "a", "c"}) ASSERT_TRUE(builder.AddPattern({name, DType::kF32, {}}, {}).ok());
  const auto layout = builder.Build();
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->Find("a"), 1);
  EXPECT_EQ(layout->Find("c"), 2);
  EXPECT_EQ(layout->Find("bb"), std::nullopt);
  EXPECT_EQ(layout->BoxOf(0, 0), Box{});
}

TEST(LayoutTest, TenMillionBoxesFitInLittleMemoryAsPatterns) {
  LayoutBuilder builder(1024);
  const Pattern pattern{.mesh = {{.size = 128, .stride = 8, .shard_dim = 0}, {.size = 8, .shard_dim = 1}}};
  for (int i = 0; i < 10'000; ++i)
    ASSERT_TRUE(
        builder.AddPattern({"expert." + std::to_string(i), DType::kBF16, {4096, 7168}}, pattern).ok());
  const auto layout = builder.Build();
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->patterns().size(), 1U);
  EXPECT_EQ(layout->parts(9'999).size(), 1U);
  EXPECT_EQ(layout->BoxOf(9'999, 1023), (Box{{4064, 6272}, {32, 896}}));
}

TEST(JoinEnginesTest, NumbersRanksOnAndMayCutEachEngineDifferently) {
  const auto two = LayoutOf(kSquare, 2, {{0, {{0, 0}, {4, 8}}}, {1, {{4, 0}, {4, 8}}}});
  const auto three =
      LayoutOf(kSquare, 3, {{0, {{0, 0}, {8, 3}}}, {1, {{0, 3}, {8, 1}}}, {2, {{0, 4}, {8, 4}}}});
  ASSERT_TRUE(two.ok() && three.ok());
  const std::vector<Layout> engines{*two, *three, *two};
  const auto joined = JoinEngines(engines);
  ASSERT_TRUE(joined.ok()) << joined.status().ToString();
  EXPECT_EQ(joined->ranks(), 7);
  EXPECT_EQ(joined->patterns().size(), 1U);
  EXPECT_EQ(joined->parts(0).size(), 3U);
  EXPECT_EQ(HeldOf(*joined, 0), (Held{{0, {{0, 0}, {4, 8}}},
                                      {1, {{4, 0}, {4, 8}}},
                                      {2, {{0, 0}, {8, 3}}},
                                      {3, {{0, 3}, {8, 1}}},
                                      {4, {{0, 4}, {8, 4}}},
                                      {5, {{0, 0}, {4, 8}}},
                                      {6, {{4, 0}, {4, 8}}}}));
  EXPECT_EQ(joined->BoxOf(0, 3), (Box{{0, 3}, {8, 1}}));
  EXPECT_EQ(joined->BoxOf(0, 6), (Box{{4, 0}, {4, 8}}));
}

TEST(JoinEnginesTest, ShowsBothWhenEnginesDisagree) {
  const auto one = LayoutOf(kSquare, 1, {{0, WholeOf({8, 8})}});
  const auto other = LayoutOf({"w", DType::kF32, {8, 8}}, 1, {{0, WholeOf({8, 8})}});
  ASSERT_TRUE(one.ok() && other.ok());
  const auto joined = JoinEngines(std::vector<Layout>{*one, *other});
  for (const char* part : {"'w'", "BF16 [8, 8] in every engine before this one", "F32 [8, 8] in this one"})
    EXPECT_THAT(joined.status().message(), HasSubstr(part));
}

}  // namespace
}  // namespace weightcast::plan
