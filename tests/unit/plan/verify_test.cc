#include "plan/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "plan/layout_builder.h"
#include "plan/models.h"

namespace weightcast::plan {
namespace {

using ::testing::HasSubstr;

/// Two fused tensors and a plain one, sharded over two trainers, to one inference rank.
class VerifyTest : public ::testing::Test {
 protected:
  const Layout trainers_ = *FsdpLayout(std::vector<TensorInfo>{{"a", DType::kF32, {4, 2}},
                                                               {"b", DType::kF32, {2, 2}},
                                                               {"c", DType::kBF16, {4, 2}},
                                                               {"d", DType::kI32, {2}}},
                                       2);
  const Layout inference_ = *DdpLayout(
      std::vector<TensorInfo>{
          {"ab", DType::kF32, {6, 2}}, {"c", DType::kBF16, {4, 2}}, {"d", DType::kI32, {2}}},
      1);
  const NameRules rules_{{Fuse{{"a", "b"}, "ab", 0}}};
  const PlanRequest request_{trainers_, inference_, rules_};
  const Plan plan_ = std::move(*MakePlan(request_));

  /// The plan with its links changed and its routes kept.
  Status VerifyWith(const std::function<void(std::vector<Link>&)>& change) const {
    std::vector<Link> links = plan_.table.links();
    change(links);
    std::vector<uint8_t> dims;
    for (const Link& link : plan_.table.links())
      dims.push_back(static_cast<uint8_t>(trainers_.tensor(link.src_tensor).shape.size()));
    RoutingTableBuilder builder(2, 1, links, dims);
    for (int64_t i = 0; i < plan_.table.size(); ++i) {
      const auto link = static_cast<uint32_t>(plan_.table.View(i).link - plan_.table.links().data());
      builder.Add(link, plan_.table.View(i).src_rank, {0, 0}, builder.AddBox(plan_.table.At(i).src_box));
    }
    return Verify(request_, std::move(builder).Build());
  }
};

TEST_F(VerifyTest, AcceptsThePlan) {
  EXPECT_EQ(Verify(request_, plan_.table).ToString(), "ok");
  EXPECT_EQ(VerifyWith([](std::vector<Link>&) {}).ToString(), "ok");
}

TEST_F(VerifyTest, RefusesLinksThatTheRulesDoNotMake) {
  EXPECT_EQ(VerifyWith([](auto& links) { links[1].dst_start -= 1; }).code(), Code::kInternal);
  EXPECT_EQ(VerifyWith([](auto& links) { std::swap(links[0].dst_start, links[1].dst_start); }).code(),
            Code::kInternal);
  EXPECT_EQ(VerifyWith([](auto& links) { links[0].src_tensor = 2; }).code(), Code::kInternal);
  EXPECT_EQ(VerifyWith([](auto& links) { links[2].transform = Transform::kCast; }).code(), Code::kInternal);
  EXPECT_EQ(VerifyWith([](auto& links) { links[0].dim = 1; }).code(), Code::kInternal);
  EXPECT_EQ(VerifyWith([](auto& links) { links[0].extent = 3; }).code(), Code::kInternal);
  EXPECT_EQ(VerifyWith([](auto& links) { links[0].src_tensor = 99; }).code(), Code::kInternal);
  EXPECT_EQ(VerifyWith([](auto& links) { links[0].dst_tensor = -1; }).code(), Code::kInternal);
  EXPECT_EQ(VerifyWith([](auto& links) { links[0].dst_tensor = 2; }).code(), Code::kInternal);
}

TEST_F(VerifyTest, RefusesATableForOtherLayouts) {
  const Layout three = *FsdpLayout(std::vector<TensorInfo>{{"c", DType::kBF16, {4, 2}}}, 3);
  EXPECT_THAT(Verify({three, inference_, rules_}, plan_.table).message(), HasSubstr("not for 3 and 1"));
  const Layout fewer = *DdpLayout(std::vector<TensorInfo>{{"c", DType::kBF16, {4, 2}}}, 1);
  EXPECT_FALSE(Verify({trainers_, fewer, rules_}, plan_.table).ok());
}

TEST_F(VerifyTest, NamesWhatIsMissing) {
  std::vector<uint8_t> dims(plan_.table.links().size(), 2);
  dims.back() = 1;
  RoutingTableBuilder builder(2, 1, plan_.table.links(), dims);
  const Status status = Verify(request_, std::move(builder).Build());
  EXPECT_THAT(status.message(), HasSubstr("'ab'"));
  EXPECT_THAT(status.message(), HasSubstr("0 of the 12 elements"));
}

TEST(VerifySeveralTest, ToldByShardAndCopy) {
  const TensorInfo w{"w", DType::kBF16, {6}};
  LayoutBuilder builder(1);
  ASSERT_TRUE(
      builder.AddRank(0, {{{w, {{4}, {2}}}, {w, {{0}, {2}}}, {w, {{0}, {2}}}, {w, {{2}, {2}}}}}).ok());
  const Layout inference = *builder.Build();
  const Layout trainers = *DdpLayout(std::vector<TensorInfo>{w}, 1);
  const NameRules rules;
  const PlanRequest request{trainers, inference, rules};
  const Plan plan = std::move(*MakePlan(request));
  ASSERT_EQ(plan.table.size(), 4);
  const auto verify = [&](const std::function<void(std::vector<Route>&)>& change) {
    std::vector<Route> routes;
    for (int64_t i = 0; i < plan.table.size(); ++i) routes.push_back(plan.table.At(i));
    change(routes);
    RoutingTableBuilder out(1, 1, plan.table.links(), {1});
    for (const Route& route : routes) out.Add(0, 0, {0, route.dst_copy}, out.AddBox(route.src_box));
    return Verify(request, std::move(out).Build()).message();
  };
  // In the order of the boxes: [0:2] twice, then [2:4] and [4:6].
  EXPECT_EQ(verify([](auto&) {}), "");
  EXPECT_EQ(verify([](auto& routes) { std::reverse(routes.begin(), routes.end()); }), "");
  EXPECT_THAT(verify([](auto& routes) { routes[1].dst_copy = 0; }), HasSubstr("write the same elements"));
  EXPECT_THAT(verify([](auto& routes) { routes[1].dst_copy = 2; }), HasSubstr("no shard of that rank"));
  EXPECT_THAT(verify([](auto& routes) { routes[2].dst_copy = 1; }), HasSubstr("no shard of that rank"));
  EXPECT_THAT(verify([](auto& routes) { routes.erase(routes.begin() + 1); }),
              HasSubstr("0 of the 2 elements of its box [0:2]"));
  EXPECT_THAT(verify([](auto& routes) { routes[2].src_box.size[0] = 4; }),
              HasSubstr("leaves the destination shard"));
}

TEST_F(VerifyTest, ARankWithOneBoxHasNoCopyOfIt) {
  std::vector<uint8_t> dims(plan_.table.links().size(), 2);
  dims.back() = 1;
  RoutingTableBuilder builder(2, 1, plan_.table.links(), dims);
  for (int64_t i = 0; i < plan_.table.size(); ++i) {
    const auto link = static_cast<uint32_t>(plan_.table.View(i).link - plan_.table.links().data());
    builder.Add(link, plan_.table.View(i).src_rank, {0, i == 0 ? 1U : 0U},
                builder.AddBox(plan_.table.At(i).src_box));
  }
  EXPECT_THAT(Verify(request_, std::move(builder).Build()).message(), HasSubstr("copy"));
}

TEST_F(VerifyTest, WantsAPartnerForEveryTensor) {
  const NameRules none;
  EXPECT_THAT(Verify({trainers_, inference_, none}, plan_.table).message(), HasSubstr("no partner"));
}

}  // namespace
}  // namespace weightcast::plan
