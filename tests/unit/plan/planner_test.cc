#include "plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "plan/assign.h"
#include "plan/layout_builder.h"
#include "plan/models.h"
#include "plan/verify.h"

namespace weightcast::plan {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

const NameRules kNoRules;

Plan MustPlan(const Layout& trainers, const Layout& inference, Strategy strategy = Strategy::kBalanced) {
  const PlanRequest request{trainers, inference, kNoRules, strategy};
  auto plan = MakePlan(request);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(Verify(request, plan->table).ToString(), "ok");
  return std::move(*plan);
}

/// Pairs of ranks that have a connection under this plan.
size_t Pairs(const RoutingTable& table) {
  std::set<std::pair<int, int>> pairs;
  for (int64_t i = 0; i < table.size(); ++i) pairs.emplace(table.View(i).src_rank, table.View(i).dst_rank);
  return pairs.size();
}

TEST(PlannerTest, QwenFromEightToEightIsBalanced) {
  const auto model = Qwen2_5_0_5B(DType::kBF16);
  const Layout eight = *DdpLayout(model, 8);
  const Plan plan = MustPlan(eight, eight);
  EXPECT_EQ(plan.report.total_bytes, 8 * int64_t{988'065'536});
  EXPECT_LE(plan.report.sender_imbalance, 1.01);
  EXPECT_EQ(plan.report.routes, 8 * 290);
  EXPECT_EQ(plan.report.makespan_bytes, plan.report.lower_bound_bytes);
}

TEST(PlannerTest, UnequalNumbersAreBalancedWithFewCutsAndFewPairs) {
  const auto model = Qwen2_5_0_5B(DType::kBF16);
  for (const auto& [trainers, ranks] :
       std::vector<std::pair<int, int>>{{16, 8}, {3, 2}, {7, 5}, {2, 9}, {16, 1}}) {
    SCOPED_TRACE(trainers);
    const Plan plan = MustPlan(*DdpLayout(model, trainers), *DdpLayout(model, ranks));
    EXPECT_LE(plan.report.sender_imbalance, 1.01);
    EXPECT_LE(plan.report.routes, 290 * ranks + 4 * trainers);
    EXPECT_LE(Pairs(plan.table), static_cast<size_t>(trainers + ranks));
    const Plan greedy = MustPlan(*DdpLayout(model, trainers), *DdpLayout(model, ranks), Strategy::kGreedy);
    EXPECT_LE(plan.report.busiest_sender_bytes, greedy.report.busiest_sender_bytes);
  }
}

TEST(PlannerTest, ShardedTrainersSendWhatTheyHoldAndStartAtDifferentReceivers) {
  const auto model = Gpt2(DType::kBF16);
  const Plan plan = MustPlan(*FsdpLayout(model, 8), *DdpLayout(model, 8));
  std::set<int> first_receivers;
  for (int rank = 0; rank < 8; ++rank)
    first_receivers.insert(plan.table.View(plan.table.OfSource(rank).first).dst_rank);
  EXPECT_EQ(first_receivers.size(), 8U);
  EXPECT_EQ(plan.report.makespan_bytes, plan.report.lower_bound_bytes);
}

TEST(PlannerTest, TensorParallelEnginesGetTheirShards) {
  const auto model = Qwen2_5_0_5B(DType::kBF16);
  const Layout trainers = *FsdpLayout(model, 3);
  const Layout inference = *TpLayout(model, 2, 3);
  const Plan plan = MustPlan(trainers, inference);
  for (int rank = 0; rank < inference.ranks(); ++rank)
    EXPECT_EQ(plan.report.receiver_bytes[static_cast<size_t>(rank)], inference.BytesOfRank(rank));
}

TEST(PlannerTest, CastsCountTheBytesOnTheWire) {
  const Layout trainers = *DdpLayout(Gpt2(DType::kF32), 2);
  const Layout inference = *DdpLayout(Gpt2(DType::kBF16), 2);
  const Plan plan = MustPlan(trainers, inference);
  EXPECT_EQ(plan.report.total_bytes, 2 * 124'439'808 * 2);
  EXPECT_EQ(plan.table.At(0).transform, Transform::kCast);
}

// What is worked out for one tensor is kept for others of the same shape, whose elements may be larger.
TEST(PlannerTest, TensorsOfOneShapeCountTheBytesOfTheirOwnDtypes) {
  for (const Strategy strategy : {Strategy::kBalanced, Strategy::kGreedy}) {
    for (const auto& [first, second] :
         {std::pair{DType::kBF16, DType::kF32}, std::pair{DType::kF32, DType::kBF16}}) {
      const std::vector<TensorInfo> tensors{{"a", first, {64, 32}}, {"b", second, {64, 32}}};
      const Plan plan = MustPlan(*FsdpLayout(tensors, 2), *DdpLayout(tensors, 2), strategy);
      EXPECT_EQ(plan.report.total_bytes, 2 * 64 * 32 * (2 + 4));
      EXPECT_THAT(plan.report.sender_bytes, Each(64 * 32 * (2 + 4)));
    }
  }
}

TEST(PlannerTest, GreedyTakesTheSourceWithTheFewestBytes) {
  const std::vector<TensorInfo> tensors{
      {"a", DType::kU8, {10}}, {"b", DType::kU8, {4}}, {"c", DType::kU8, {4}}};
  const Plan plan = MustPlan(*DdpLayout(tensors, 2), *DdpLayout(tensors, 1), Strategy::kGreedy);
  EXPECT_EQ(plan.report.sender_bytes, (std::vector<int64_t>{10, 8}));
  EXPECT_EQ(plan.report.lower_bound_bytes, 18);  // The one receiver's link.
  EXPECT_EQ(plan.report.sender_imbalance, 10.0 / 9.0);
}

TEST(PlannerTest, SmallTensorsAreNotCut) {
  const std::vector<TensorInfo> tensors{{"a", DType::kU8, {1000}}, {"b", DType::kU8, {1000}}};
  EXPECT_EQ(MustPlan(*DdpLayout(tensors, 7), *DdpLayout(tensors, 1)).report.routes, 2);
}

TEST(PlannerTest, LargeRowsAreCutInside) {
  // Eight rows of 8 MiB to three senders: a share ends in the middle of a row.
  const std::vector<TensorInfo> tensors{{"a", DType::kU8, {8, 8 << 20}}};
  const Plan plan = MustPlan(*DdpLayout(tensors, 3), *DdpLayout(tensors, 1));
  EXPECT_LE(plan.report.sender_imbalance, 1.01);
  EXPECT_LE(plan.report.routes, 8);
}

TEST(PlannerTest, NamesTheTensorThatIsCutInsideAByte) {
  const TensorInfo tensor{"w", DType::kF4, {2, 6}};
  LayoutBuilder trainers(2);
  ASSERT_TRUE(trainers.AddPattern(tensor, {.mesh = {{.size = 2, .shard_dim = 1}}}).ok());
  const Layout source = *trainers.Build();
  const Layout whole = *DdpLayout(std::vector<TensorInfo>{tensor}, 1);
  const auto plan = MakePlan({source, whole, kNoRules});
  EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(plan.status().message(), HasSubstr("'w'"));
  EXPECT_THAT(plan.status().message(), HasSubstr("byte"));
}

TEST(PlannerTest, RefusesTrainersThatHoldAnElementInTwoWays) {
  const std::vector<TensorInfo> tensors{{"w", DType::kU8, {6}}};
  const Layout two = *JoinEngines(std::vector<Layout>{*FsdpLayout(tensors, 2), *FsdpLayout(tensors, 3)});
  EXPECT_THAT(MakePlan({two, *DdpLayout(tensors, 1), kNoRules}).status().message(),
              HasSubstr("exactly once"));
}

TEST(PlannerTest, TooLargeForTheMemoryIsRefusedWithItsNumbers) {
  const auto model = Qwen2_5_0_5B(DType::kBF16);
  const Layout trainers = *FsdpLayout(model, 4);
  const Layout inference = *TpLayout(model, 2, 3);
  const int64_t routes = MustPlan(trainers, inference).report.routes;
  const auto plan = [&](uint64_t memory) {
    return MakePlan({trainers, inference, kNoRules, Strategy::kBalanced, memory}).status();
  };
  EXPECT_TRUE(plan(static_cast<uint64_t>(routes) * 1000).ok());
  for (const uint64_t memory : {uint64_t{0}, uint64_t{1000}, static_cast<uint64_t>(routes) * 100}) {
    EXPECT_EQ(plan(memory).code(), Code::kExhausted);
    // All are counted, wherever it was found out.
    EXPECT_THAT(plan(memory).message(), HasSubstr(std::to_string(routes) + " routes"));
    EXPECT_THAT(plan(memory).message(), HasSubstr("from 4 ranks to 6"));
    EXPECT_THAT(plan(memory).message(), HasSubstr("plan_memory"));
  }
}

TEST(PlannerTest, MoreRoutesThanTheTableOfOneRankHoldsAreRefused) {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 2100; ++i) tensors.push_back({"t" + std::to_string(i), DType::kU8, {1}});
  const Status status = MakePlan({*DdpLayout(tensors, 1), *DdpLayout(tensors, 2000), kNoRules}).status();
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_THAT(status.message(), HasSubstr("sender 0 has 4200000; its table holds at most 4194304"));
}

TEST(PlannerTest, NothingToSendIsAPlanToo) {
  const std::vector<TensorInfo> tensors{{"w", DType::kU8, {0, 4}}};
  const Plan plan = MustPlan(*DdpLayout(tensors, 2), *DdpLayout(tensors, 2));
  EXPECT_EQ(plan.report.routes, 0);
  EXPECT_EQ(plan.report.sender_imbalance, 1.0);
  EXPECT_THAT(plan.report.sender_bytes, Each(0));
}

TEST(PlannerTest, StrategiesHaveNames) {
  EXPECT_EQ(StrategyFromName("greedy"), Strategy::kGreedy);
  EXPECT_EQ(StrategyFromName(NameOf(Strategy::kBalanced)), Strategy::kBalanced);
  EXPECT_EQ(StrategyFromName("best"), std::nullopt);
}

RC_GTEST_PROP(CutRowMajorProperty, BoxesTileTheRangeInOrder, ()) {
  Shape size;
  for (int dims = *rc::gen::inRange(1, 5); dims > 0; --dims) size.push_back(*rc::gen::inRange(1, 5));
  const Shape offset(size.size(), 3);
  const int64_t elements = ElementsOf(size);
  const int64_t first = *rc::gen::inRange<int64_t>(0, elements + 1);
  const int64_t last = *rc::gen::inRange<int64_t>(first, elements + 1);
  LargeVector<int64_t> coords;
  CutRowMajor(offset, size, first, last, coords);
  int64_t next = first;
  const size_t dims = size.size();
  for (size_t at = 0; at < coords.size(); at += 2 * dims) {
    // Each box begins where the one before it ended, and is one run of the whole.
    int64_t begin = 0;
    int64_t count = 1;
    bool ragged = false;
    for (size_t d = 0; d < dims; ++d) {
      begin = begin * size[d] + coords[at + d] - 3;
      const int64_t extent = coords[at + dims + d];
      RC_ASSERT(extent >= 1);
      RC_ASSERT(!ragged || extent == size[d]);
      ragged = ragged || extent > 1;
      count *= extent;
    }
    RC_ASSERT(begin == next);
    next += count;
  }
  RC_ASSERT(next == last);
  RC_ASSERT(coords.size() / (2 * dims) <= 2 * dims);
}

}  // namespace
}  // namespace weightcast::plan
