#include "plan/quantise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plan/layout_builder.h"
#include "plan/links.h"
#include "plan/planner.h"
#include "plan/table_format.h"
#include "plan/verify.h"

namespace weightcast::plan {
namespace {

using ::testing::HasSubstr;

const NameRules kRules{{Quantise{.from = "{**}.weight", .to = "", .scales = "{**}.weight_scale_inv"}}};

/// Per rank what it holds.
using Ranks = std::vector<std::vector<Holding>>;

Layout LayoutOf(const Ranks& ranks) {
  LayoutBuilder builder(static_cast<int>(ranks.size()));
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    EXPECT_TRUE(builder.AddRank(static_cast<int>(rank), ranks[rank]).ok());
  auto layout = builder.Build();
  EXPECT_TRUE(layout.ok()) << layout.status().ToString();
  return std::move(*layout);
}

TensorInfo Weight(Shape shape, DType dtype = DType::kBF16) { return {"a.weight", dtype, std::move(shape)}; }
TensorInfo Scales(Shape shape, DType dtype = DType::kF32) {
  return {"a.weight_scale_inv", dtype, std::move(shape)};
}
Holding Whole(const TensorInfo& tensor) { return {tensor, WholeOf(tensor.shape)}; }

/// Why one trainer and one rank do not go together.
std::string WhyNotLinked(const NameRules& rules, std::vector<TensorInfo> trainer,
                         std::vector<TensorInfo> rank) {
  Ranks sides(2);
  for (const TensorInfo& tensor : trainer) sides[0].push_back(Whole(tensor));
  for (const TensorInfo& tensor : rank) sides[1].push_back(Whole(tensor));
  return ResolveLinks(rules, LayoutOf({sides[0]}), LayoutOf({sides[1]})).status().message();
}

TEST(QuantiseRule, ComesBackFromJsonAndRefusesWhatCannotWork) {
  const NameRules named{{Quantise{.from = "m.{*}.w", .to = "{*}.w", .scales = "{*}.s"}}};
  for (const NameRules& rules : {kRules, named}) EXPECT_EQ(*ParseRules(ToJson(rules)), rules);
  const auto refused = [](const char* rule) {
    return ParseRules(std::string(R"({"rules": [)") + rule + "]}").status().message();
  };
  EXPECT_EQ(refused(R"({"quantise": "a", "scales": "b"})"), "");
  EXPECT_THAT(refused(R"({"quantise": "a", "scales": "b", "block": [64, 128]})"),
              HasSubstr("rule 1: quantise of 'a' has the block [64, 128]; only [128, 128] is allowed"));
  EXPECT_THAT(refused(R"({"quantise": "a", "scales": "b", "block": 128})"), HasSubstr("list of sizes"));
  EXPECT_THAT(refused(R"({"quantise": "a", "scales": "b", "block": [-1, 1]})"), HasSubstr("list of sizes"));
  EXPECT_THAT(refused(R"({"quantise": "a"})"), HasSubstr("no 'scales'"));
  EXPECT_THAT(refused(R"({"quantise": "a", "scales": "a"})"), HasSubstr("another name"));
  EXPECT_THAT(refused(R"({"quantise": "{*}", "scales": "b"})"), HasSubstr("placeholders"));
  EXPECT_THAT(refused(R"({"quantise": "a", "scales": "b", "dim": 0})"), HasSubstr("the member 'dim'"));
}

TEST(QuantisedBy, GoesByTheFirstRuleThatMatches) {
  NameRules rules = kRules;
  rules.rules.insert(rules.rules.begin(), NotSent{"x.weight"});
  rules.rules.insert(rules.rules.begin(), Rename{"norm.weight", "norm"});
  EXPECT_FALSE(*QuantisedBy(rules, {"norm.weight", DType::kBF16, {7}}));
  EXPECT_FALSE(*QuantisedBy(rules, {"x.weight", DType::kBF16, {7}}));
  EXPECT_FALSE(*QuantisedBy(rules, {"bias", DType::kBF16, {7}}));
  const auto found = QuantisedBy(rules, Weight({300, 128}));
  ASSERT_TRUE(found.ok() && *found);
  EXPECT_EQ((*found)->rule, 2U);
  EXPECT_EQ((*found)->values, "a.weight");
  EXPECT_EQ((*found)->scales, Scales({3, 1}));
}

TEST(ResolveQuantised, CutsWideTensorsIntoStrips) {
  const auto links =
      ResolveLinks(kRules, LayoutOf({{Whole(Weight({1, 33000})), Whole(Scales({1, 258}))}}),
                   LayoutOf({{Whole(Weight({1, 33000}, DType::kF8E4M3)), Whole(Scales({1, 258}))}}));
  ASSERT_TRUE(links.ok()) << links.status().ToString();
  ASSERT_EQ(links->size(), 4U);
  EXPECT_EQ((*links)[1], (Link{.dim = 1,
                               .src_start = 16384,
                               .dst_start = 16384,
                               .extent = 16384,
                               .transform = Transform::kQuantise}));
  EXPECT_EQ((*links)[2].extent, 33000 - 2 * 16384);
  EXPECT_EQ((*links)[3].transform, Transform::kNone);
}

TEST(ResolveQuantised, ScalesAreF32AlsoWhereNobodyWantsTheValues) {
  const Layout trainers = LayoutOf({{Whole(Weight({300, 200})), Whole(Scales({3, 2}))}});
  const std::vector<std::string> unwanted = {"a.weight"};
  const auto links = [&](DType dtype) {
    return ResolveLinks(kRules, trainers, LayoutOf({{Whole(Scales({3, 2}, dtype))}}), unwanted);
  };
  ASSERT_TRUE(links(DType::kF32).ok()) << links(DType::kF32).status().ToString();
  EXPECT_EQ(links(DType::kF32)->size(), 1U);
  EXPECT_THAT(links(DType::kBF16).status().message(),
              HasSubstr("'a.weight_scale_inv' on the inference side must be F32"));
}

TEST(ResolveQuantised, RefusesByName) {
  const TensorInfo w = Weight({300, 200});
  const TensorInfo s = Scales({3, 2});
  const TensorInfo q = Weight({300, 200}, DType::kF8E4M3);
  EXPECT_EQ(WhyNotLinked(kRules, {w, s}, {q, s}), "");
  EXPECT_THAT(WhyNotLinked({}, {w}, {q}),
              HasSubstr("'a.weight' is BF16 on the trainers' side but 'a.weight' is "
                        "F8_E4M3 on the inference side; give the trainers a rule"));
  EXPECT_THAT(WhyNotLinked(kRules, {w, s}, {w, s}),
              HasSubstr("'a.weight' on the inference side must be F8_E4M3"));
  EXPECT_THAT(WhyNotLinked(kRules, {w, s}, {q, Scales({3, 2}, DType::kBF16)}),
              HasSubstr("'a.weight_scale_inv' on the inference side must be F32"));
  EXPECT_THAT(WhyNotLinked(kRules, {w, s}, {q, Scales({2, 3})}),
              HasSubstr("has shape [3, 2] on the trainers'"));
  EXPECT_THAT(WhyNotLinked(kRules, {w, s}, {Weight({200, 300}, DType::kF8E4M3), s}),
              HasSubstr("register equal shapes"));
  EXPECT_THAT(WhyNotLinked(kRules, {w, s}, {q}),
              HasSubstr("without a partner on the inference side: 'a.weight_scale"));
  EXPECT_THAT(WhyNotLinked(kRules, {w}, {q, s}), HasSubstr("must have 'a.weight_scale_inv' F32 [3, 2]"));
  EXPECT_THAT(WhyNotLinked(kRules, {{"b", DType::kF32, {1}}}, {{"b", DType::kF32, {1}}}),
              HasSubstr("rule 1 quantises '{**}.weight', but no tensor of the trainers has that name"));
  EXPECT_THAT(WhyNotLinked(kRules, {Weight({7})}, {q, s}),
              HasSubstr("has the shape [7]; it must have two dimensions"));
  EXPECT_THAT(WhyNotLinked(kRules, {Weight({7, 7}, DType::kF64)}, {q, s}), HasSubstr("has the dtype F64"));
  const NameRules both{{Quantise{.from = "a.weight", .to = "", .scales = "s"},
                        Quantise{.from = "b.weight", .to = "", .scales = "s"}}};
  const TensorInfo b{"b.weight", DType::kBF16, {300, 200}};
  EXPECT_THAT(WhyNotLinked(both, {w, b, {"s", DType::kF32, {3, 2}}}, {q}),
              HasSubstr("'s' would hold the scales of"));
}

TEST(ResolveQuantised, RefusesCutsInsideBlocksOnBothSides) {
  const TensorInfo w = Weight({512, 256});
  const TensorInfo q = Weight({512, 256}, DType::kF8E4M3);
  const Holding scales = Whole(Scales({4, 2}));
  const auto halves = [](const TensorInfo& tensor, int64_t cut) {
    return std::pair(Holding{tensor, {{0, 0}, {cut, 256}}}, Holding{tensor, {{cut, 0}, {512 - cut, 256}}});
  };
  const auto why = [&](int64_t trainers, int64_t ranks) {
    const auto [a, b] = halves(w, trainers);
    const auto [x, y] = halves(q, ranks);
    return ResolveLinks(kRules, LayoutOf({{a, scales}, {b}}), LayoutOf({{x, scales}, {y, scales}}))
        .status()
        .message();
  };
  EXPECT_EQ(why(128, 384), "");
  EXPECT_THAT(why(100, 384), HasSubstr("the box [0:100, 0:256] of trainer 0 cuts blocks; cut at multiples"));
  EXPECT_THAT(why(128, 192), HasSubstr("the box [0:192, 0:256] of inference rank 0 cuts blocks"));
}

/// Boxes that cut a matrix of so many elements in one dimension, at borders of blocks.
std::vector<Box> RandomCuts(std::mt19937& random, const Shape& shape, int64_t unit) {
  const size_t dim = random() % 2;
  std::vector<Box> boxes;
  for (int64_t at = 0; at < shape[dim];) {
    Box box = WholeOf(shape);
    box.offset[dim] = at;
    box.size[dim] = std::min(static_cast<int64_t>(1 + random() % 9) * unit, shape[dim] - at);
    at += box.size[dim];
    boxes.push_back(std::move(box));
  }
  return boxes;
}

Ranks RandomRanks(std::mt19937& random, const TensorInfo& weight, const TensorInfo& scales, bool trainers) {
  Ranks ranks;
  for (const Box& box : RandomCuts(random, weight.shape, 128)) {
    const size_t replicas = 1 + random() % 3;
    for (size_t i = 0; i < replicas; ++i) {
      ranks.push_back({{weight, box}});
      // Trainers have the scales of what they hold.
      ranks.back().push_back(trainers ? Holding{scales, ScalesOf(box)} : Whole(scales));
    }
  }
  return ranks;
}

TEST(PlanQuantised, EveryRouteHasWholeBlocksAndTablesComeBack) {
  std::mt19937 random(3);
  for (int round = 0; round < 15; ++round) {
    const Shape shape = {static_cast<int64_t>(1 + random() % 3000),
                         static_cast<int64_t>(1 + random() % 40000)};
    const TensorInfo scales = QuantisedBy(kRules, Weight(shape)).value()->scales;
    const Layout trainers = LayoutOf(RandomRanks(random, Weight(shape), scales, true));
    const Layout ranks = LayoutOf(RandomRanks(random, Weight(shape, DType::kF8E4M3), scales, false));
    const PlanRequest request{trainers, ranks, kRules};
    const auto plan = MakePlan(request);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    ASSERT_EQ(Verify(request, plan->table).ToString(), "ok");
    int64_t values = 0;
    for (int64_t i = 0; i < plan->table.size(); ++i) {
      const Route route = plan->table.At(i);
      if (route.transform != Transform::kQuantise) continue;
      EXPECT_TRUE(HasWholeBlocks(route.src_box, shape));
      EXPECT_LE(route.src_box.size[1], kMaxQuantisedColumns);
      ++values;
    }
    const TableEncoder encoder(trainers, ranks, plan->table);
    for (int rank = 0; rank < trainers.ranks(); ++rank) {
      const auto table = DecodeRankTable(*encoder.Encode(RankTable::Role::kTrainer, rank, 1));
      ASSERT_TRUE(table.ok()) << table.status().ToString();
      for (const auto& route : table->routes) values -= route.transform == Transform::kQuantise ? 1 : 0;
    }
    EXPECT_EQ(values, 0);
  }
}

/// A plan from one trainer to one rank with its link to the values changed.
TEST(PlanQuantised, TheVerifierAndTheDecoderRefuseWhatCutsBlocks) {
  const Layout trainers = LayoutOf({{Whole(Weight({256, 256})), Whole(Scales({2, 2}))}});
  const Layout ranks = LayoutOf({{Whole(Weight({256, 256}, DType::kF8E4M3)), Whole(Scales({2, 2}))}});
  const PlanRequest request{trainers, ranks, kRules};
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok());
  const auto with_rows = [&](int64_t cut, auto change) {
    std::vector<Link> links = plan->table.links();
    for (Link& link : links)
      if (link.transform == Transform::kQuantise) change(link);
    RoutingTableBuilder builder(1, 1, links, {2, 2});
    for (int64_t i = 0; i < plan->table.size(); ++i) {
      const Route route = plan->table.At(i);
      const auto link = static_cast<uint32_t>(plan->table.View(i).link - plan->table.links().data());
      if (route.transform != Transform::kQuantise) {
        builder.Add(link, 0, {0, 0}, builder.AddBox(route.src_box));
        continue;
      }
      builder.Add(link, 0, {0, 0}, builder.AddBox({{0, 0}, {cut, 256}}));
      builder.Add(link, 0, {0, 0}, builder.AddBox({{cut, 0}, {256 - cut, 256}}));
    }
    return std::move(builder).Build();
  };
  const auto same = [](Link&) {};
  EXPECT_EQ(Verify(request, with_rows(128, same)).ToString(), "ok");
  EXPECT_THAT(Verify(request, with_rows(64, same)).message(), HasSubstr("cuts blocks"));
  for (const auto& change : std::vector<std::function<void(Link&)>>{
           [](Link& link) { link.transform = Transform::kCast; }, [](Link& link) { link.dim = 0; },
           [](Link& link) { link.src_start = 128; }, [](Link& link) { link.extent = 100; }})
    EXPECT_EQ(Verify(request, with_rows(128, change)).code(), Code::kInternal);
  const auto decoded = [&](const RoutingTable& table) {
    return DecodeRankTable(*TableEncoder(trainers, ranks, table).Encode(RankTable::Role::kInference, 0, 1))
        .status();
  };
  EXPECT_TRUE(decoded(with_rows(128, same)).ok());
  EXPECT_THAT(decoded(with_rows(64, same)).message(), HasSubstr("a route quantises parts of blocks"));
  EXPECT_THAT(decoded(with_rows(128, [](Link& link) { link.transform = Transform::kNone; })).message(),
              HasSubstr("transform"));
}

}  // namespace
}  // namespace weightcast::plan
