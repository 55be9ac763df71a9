#include "plan/fused_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "plan/models.h"
#include "plan_cases.h"

namespace weightcast::plan {
namespace {

using ::testing::HasSubstr;
using testing::Must;
using testing::PlaceIn;

/// q, k and v (or gate and up) of a model, what the engine fuses them into, and over how many ranks.
struct Fusion {
  std::vector<TensorInfo> parts;
  TensorInfo whole;
  int dim = 0;
  int tp = 1;
  int trainers = 1;
  bool rows_over_ranks = true;  ///< The trainers' layout: FSDP, else DDP.

  [[nodiscard]] std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const TensorInfo& part : parts) names.push_back(part.name);
    return names;
  }
  [[nodiscard]] Layout Trainers(const std::vector<TensorInfo>& tensors) const {
    return Must(rows_over_ranks ? FsdpLayout(tensors, trainers) : DdpLayout(tensors, trainers));
  }
};

Fusion RandomFusion() {
  Fusion out;
  out.tp = *rc::gen::inRange(1, 9);
  out.trainers = *rc::gen::inRange(1, 5);
  out.dim = *rc::gen::inRange(0, 2);
  out.rows_over_ranks = *rc::gen::arbitrary<bool>();
  const int64_t other = *rc::gen::inRange(1, 6);
  const int count = *rc::gen::inRange(2, 5);
  const auto d = static_cast<size_t>(out.dim);
  out.whole = {"whole", DType::kU8, {other, other}};
  out.whole.shape[d] = 0;
  for (int i = 0; i < count; ++i) {
    TensorInfo part{"part" + std::to_string(i), DType::kU8, {other, other}};
    part.shape[d] = out.tp * *rc::gen::inRange<int64_t>(1, 4);  // As heads divide among ranks.
    out.whole.shape[d] += part.shape[d];
    out.parts.push_back(part);
  }
  return out;
}

Layout Cut(const std::vector<TensorInfo>& tensors, int ranks, int dim) {
  LayoutBuilder builder(ranks);
  for (const TensorInfo& tensor : tensors)
    Must(builder.AddPattern(tensor, {.mesh = {{.size = ranks, .shard_dim = dim}}}));
  return Must(builder.Build());
}

/// The element of a part that an element of the trainers' memory is: (part, row, column), whichever way they
/// hold it.
using Element = std::vector<int64_t>;
Element ElementOf(const Fusion& fusion, const std::string& tensor, Shape at) {
  for (size_t i = 0; i < fusion.parts.size(); ++i) {
    const int64_t extent = fusion.parts[i].shape[static_cast<size_t>(fusion.dim)];
    int64_t& along = at[static_cast<size_t>(fusion.dim)];
    if (tensor == fusion.parts[i].name || (tensor == fusion.whole.name && along < extent))
      return {static_cast<int64_t>(i), at[0], at[1]};
    if (tensor == fusion.whole.name) along -= extent;
  }
  throw std::runtime_error("no part holds " + tensor);
}

/// What an engine's rank holds, as its loader makes it: of each part its share, one after another along
/// `dim`.
std::vector<Element> EngineMemory(const Fusion& fusion, int rank) {
  std::vector<Element> memory;
  const auto d = static_cast<size_t>(fusion.dim);
  Shape local = fusion.whole.shape;
  local[d] /= fusion.tp;
  for (int64_t row = 0; row < local[0]; ++row) {
    for (int64_t column = 0; column < local[1]; ++column) {
      Shape at{row, column};
      int64_t part = 0;
      int64_t share = fusion.parts[0].shape[d] / fusion.tp;
      while (at[d] >= share) {
        at[d] -= share;
        share = fusion.parts[static_cast<size_t>(++part)].shape[d] / fusion.tp;
      }
      at[d] += rank * share;
      memory.push_back({part, at[0], at[1]});
    }
  }
  return memory;
}

/// Where the first element of a registered tensor lies in the fused memory of a rank, along `dim`.
int64_t StartOf(const Fusion& fusion, const std::string& tensor) {
  int64_t start = 0;
  for (const TensorInfo& part : fusion.parts) {
    if (tensor == part.name || tensor == "as." + part.name) return start;
    start += part.shape[static_cast<size_t>(fusion.dim)] / fusion.tp;
  }
  return 0;
}

/// Carries out a plan into fused memories of the engine's ranks.
std::vector<std::vector<Element>> Deliver(const Fusion& fusion, const Layout& trainers, const Layout& engine,
                                          const RoutingTable& table) {
  const auto d = static_cast<size_t>(fusion.dim);
  Shape local = fusion.whole.shape;
  local[d] /= fusion.tp;
  std::vector<std::vector<Element>> memories(static_cast<size_t>(fusion.tp),
                                             std::vector<Element>(static_cast<size_t>(local[0] * local[1])));
  for (const Route& route : testing::RoutesOf(table)) {
    const TensorInfo& to = engine.tensor(route.dst_tensor);
    const auto boxes = engine.BoxesOf(route.dst_tensor, route.dst_rank);
    const auto number =
        static_cast<size_t>(testing::ShardOf(boxes, {route.dst_offset, route.src_box.size}, route.dst_copy));
    const Box& box = boxes.at(number);
    // Boxes of the whole lie one after another, as the parts do.
    int64_t start = StartOf(fusion, to.name);
    for (size_t before = 0; before < number; ++before) start += boxes[before].size[d];
    for (int64_t row = 0; row < route.src_box.size[0]; ++row) {
      for (int64_t column = 0; column < route.src_box.size[1]; ++column) {
        const Shape from{route.src_box.offset[0] + row, route.src_box.offset[1] + column};
        Shape at{route.dst_offset[0] + row - box.offset[0], route.dst_offset[1] + column - box.offset[1]};
        at[d] += start;
        memories[static_cast<size_t>(route.dst_rank)][static_cast<size_t>(at[0] * local[1] + at[1])] =
            ElementOf(fusion, trainers.tensor(route.src_tensor).name, from);
      }
    }
  }
  return memories;
}

void ExpectRight(const Fusion& fusion, const Layout& trainers, const Layout& engine, const NameRules& rules) {
  const auto plan = MakePlan({trainers, engine, rules});
  if (!plan.ok()) RC_FAIL(plan.status().ToString());
  const auto memories = Deliver(fusion, trainers, engine, plan->table);
  for (int rank = 0; rank < fusion.tp; ++rank)
    RC_ASSERT(memories[static_cast<size_t>(rank)] == EngineMemory(fusion, rank));
}

RC_GTEST_PROP(FusedCutProperty, ViewsOfThePartsGiveEveryRankWhatAnEngineHolds, ()) {
  const Fusion fusion = RandomFusion();
  ExpectRight(fusion, fusion.Trainers(fusion.parts), Cut(fusion.parts, fusion.tp, fusion.dim), {});
}

RC_GTEST_PROP(FusedCutProperty, SoDoViewsUnderOtherNames, ()) {
  const Fusion fusion = RandomFusion();
  std::vector<TensorInfo> renamed = fusion.parts;
  for (TensorInfo& part : renamed) part.name = "as." + part.name;
  ExpectRight(fusion, fusion.Trainers(fusion.parts), Cut(renamed, fusion.tp, fusion.dim),
              {{Rename{"{*}", "as.{*}"}}});
}

RC_GTEST_PROP(FusedCutProperty, SoDoViewsFilledFromAFusedTensorOfFsdpTrainers, ()) {
  const Fusion fusion = RandomFusion();
  ExpectRight(fusion, fusion.Trainers({fusion.whole}), Cut(fusion.parts, fusion.tp, fusion.dim),
              {{Split{"whole", fusion.Names(), fusion.dim}}});
}

/// Each rank holds its box of each part of the whole, told in a random order.
Layout BoxesOfTheWhole(const Fusion& fusion) {
  const auto d = static_cast<size_t>(fusion.dim);
  LayoutBuilder builder(fusion.tp);
  for (int rank = 0; rank < fusion.tp; ++rank) {
    std::vector<Holding> holdings;
    int64_t start = 0;
    for (const TensorInfo& part : fusion.parts) {
      Box box = WholeOf(fusion.whole.shape);
      box.size[d] = part.shape[d] / fusion.tp;
      box.offset[d] = start + rank * box.size[d];
      start += part.shape[d];
      holdings.push_back({fusion.whole, box});
    }
    std::rotate(holdings.begin(), holdings.begin() + *rc::gen::inRange(0, 2), holdings.end());
    Must(builder.AddRank(rank, holdings));
  }
  return Must(builder.Build());
}

RC_GTEST_PROP(FusedCutProperty, SoDoSeveralBoxesOfTheWhole, ()) {
  const Fusion fusion = RandomFusion();
  const Layout engine = BoxesOfTheWhole(fusion);
  ExpectRight(fusion, fusion.Trainers({fusion.whole}), engine, {});
  ExpectRight(fusion, fusion.Trainers(fusion.parts), engine, {{Fuse{fusion.Names(), "whole", fusion.dim}}});
}

RC_GTEST_PROP(FusedCutProperty, APartOfTheFusedDimensionIsRefusedAndTheWholeIsRight, ()) {
  Fusion fusion = RandomFusion();
  const NameRules rules{{Fuse{fusion.Names(), "whole", fusion.dim}}};
  const Layout trainers = fusion.Trainers(fusion.parts);
  const Layout engine = Cut({fusion.whole}, fusion.tp, fusion.dim);
  if (fusion.tp == 1) return ExpectRight(fusion, trainers, engine, rules);
  const Status status = MakePlan({trainers, engine, rules}).status();
  RC_ASSERT(status.code() == Code::kInvalidArgument);
  for (const std::string& word :
       {std::string("'whole'"), std::string("rule 1"), std::string("'part1'"), std::string("views"),
        std::string("dimension " + std::to_string(fusion.dim))})
    RC_ASSERT(status.message().find(word) != std::string::npos);
  fusion.tp = 1;  // Replicas of the whole, as of a pipeline's ranks.
  ExpectRight(fusion, trainers, Cut({fusion.whole}, 1, kReplicate), rules);
}

RC_GTEST_PROP(FusedCutProperty, ACutOfTheOtherDimensionIsWhatItSays, ()) {
  const Fusion fusion = RandomFusion();
  const Layout engine = Cut({fusion.whole}, fusion.tp, 1 - fusion.dim);
  RC_ASSERT(
      MakePlan({fusion.Trainers(fusion.parts), engine, {{Fuse{fusion.Names(), "whole", fusion.dim}}}}).ok());
}

TEST(FusedCutTest, AnEngineWhoseCutsEndWhereThePartsEndIsRefusedToo) {
  // Rank 0 would get all of q; it holds a third of q, k and v.
  const std::vector<TensorInfo> parts{{"q", DType::kU8, {3}}, {"k", DType::kU8, {3}}, {"v", DType::kU8, {3}}};
  const Layout trainers = *DdpLayout(parts, 1);
  const Layout engine = *FsdpLayout(std::vector<TensorInfo>{{"qkv", DType::kU8, {9}}}, 3);
  EXPECT_THAT(MakePlan({trainers, engine, {{Fuse{{"q", "k", "v"}, "qkv", 0}}}}).status().message(),
              HasSubstr("inference rank 0 holds only in part ([0:3])"));
}

TEST(FusedCutTest, SeveralBoxesCountOnlyWhereTheyRespectTheParts) {
  const std::vector<TensorInfo> parts{{"q", DType::kU8, {4, 2}}, {"k", DType::kU8, {2, 2}}};
  const TensorInfo whole{"qk", DType::kU8, {6, 2}};
  const Layout trainers = *DdpLayout(parts, 1);
  const auto rows = [&](int64_t begin, int64_t end) {
    return Holding{whole, {{begin, 0}, {end - begin, 2}}};
  };
  const auto plan = [&](const std::vector<Holding>& first, const std::vector<Holding>& second) {
    LayoutBuilder builder(2);
    Must(builder.AddRank(0, first));
    Must(builder.AddRank(1, second));
    const Layout engine = Must(builder.Build());
    return MakePlan({trainers, engine, {{Fuse{{"q", "k"}, "qk", 0}}}}).status().message();
  };
  EXPECT_EQ(plan({rows(0, 2), rows(4, 5)}, {rows(2, 4), rows(5, 6)}), "");
  EXPECT_EQ(plan({rows(0, 4), rows(4, 6)}, {}), "") << "all of each, in two buffers";
  EXPECT_EQ(plan({rows(0, 1), rows(3, 4)}, {rows(1, 3), rows(4, 6)}), "") << "experts of a part";
  EXPECT_THAT(plan({rows(0, 1), rows(1, 2)}, {rows(2, 4), rows(4, 6)}),
              HasSubstr("inference rank 0 holds only in part ([0:1, 0:2])"))
      << "one box cut in two";
  EXPECT_THAT(plan({rows(0, 2), rows(0, 2)}, {rows(2, 4), rows(4, 6)}), HasSubstr("inference rank 0"))
      << "one box twice";
  EXPECT_THAT(plan({rows(0, 2), rows(5, 6)}, {rows(2, 5)}),
              HasSubstr("inference rank 1 holds only in part ([2:5, 0:2])"));
  EXPECT_THAT(plan({rows(0, 1), rows(3, 6)}, {rows(1, 3)}), HasSubstr("several shards of 'qk'"));
}

TEST(FusedCutTest, ATableTellsWhichTensorsAreFused) {
  const std::vector<TensorInfo> parts{
      {"q", DType::kU8, {2, 3}}, {"k", DType::kU8, {2, 3}}, {"n", DType::kU8, {4}}};
  const Layout trainers = *DdpLayout(parts, 1);
  const Layout engine =
      *DdpLayout(std::vector<TensorInfo>{{"n", DType::kU8, {4}}, {"qk", DType::kU8, {2, 6}}}, 1);
  const auto plan = MakePlan({trainers, engine, {{Fuse{{"q", "k"}, "qk", 1}}}});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(FusedTensorsOf(plan->table, engine), (FusedTensors{{"qk", {.dim = 1, .starts = {0, 3}}}}));
}

TEST(FusedCutTest, EnginesAmongThemselvesFollowTheSameRule) {
  const std::vector<TensorInfo> tensors{{"qkv", DType::kU8, {6, 4}}};
  const Layout whole = *DdpLayout(tensors, 2);
  const Layout rows = Cut(tensors, 2, 0);
  const Layout columns = Cut(tensors, 2, 1);
  const FusedTensors fused{{"qkv", {.dim = 0, .starts = {0, 2, 4}}}};
  const FusedTensors none;
  EXPECT_TRUE(CheckCutsAmongEngines(&fused, whole, columns).ok());
  EXPECT_TRUE(CheckCutsAmongEngines(&none, whole, rows).ok());
  EXPECT_THAT(CheckCutsAmongEngines(&fused, whole, rows).message(), HasSubstr("'qkv' is fused"));
  EXPECT_THAT(CheckCutsAmongEngines(nullptr, whole, rows).message(), HasSubstr("as it is"));
  EXPECT_TRUE(CheckCutsAmongEngines(nullptr, whole, whole).ok());
  // [q_r; k_r; v_r], from the whole and from an engine of the same kind.
  LayoutBuilder builder(2);
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<Holding> parts;
    for (int64_t start = 0; start < 6; start += 2) parts.push_back({tensors[0], {{start + rank, 0}, {1, 4}}});
    Must(builder.AddRank(rank, parts));
  }
  const Layout parts = Must(builder.Build());
  EXPECT_TRUE(CheckCutsAmongEngines(&fused, whole, parts).ok());
  EXPECT_TRUE(CheckCutsAmongEngines(nullptr, parts, parts).ok());
  EXPECT_FALSE(CheckCutsAmongEngines(nullptr, whole, parts).ok());
}

}  // namespace
}  // namespace weightcast::plan
