#include "plan/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/links.h"
#include "plan/models.h"
#include "weightcast/rules.h"

namespace weightcast::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MatchNameTest, PlaceholdersTakeOnePartOrAnything) {
  EXPECT_THAT(*MatchName("a.{*}.b", "a.12.b"), ElementsAre("12"));
  EXPECT_EQ(MatchName("a.{*}.b", "a.1.2.b"), std::nullopt);
  EXPECT_THAT(*MatchName("a.{**}.b", "a.1.2.b"), ElementsAre("1.2"));
  EXPECT_EQ(MatchName("a.{*}.b", "a..b"), std::nullopt);
  EXPECT_THAT(*MatchName("{**}.{*}", "x.y.z"), ElementsAre("x.y", "z"));
  EXPECT_THAT(*MatchName("{*}{*}", "abc"), ElementsAre("a", "bc"));
  EXPECT_THAT(*MatchName("plain", "plain"), ElementsAre());
  EXPECT_EQ(MatchName("plain", "plain.more"), std::nullopt);
  EXPECT_EQ(MatchName("plain.more", "plain"), std::nullopt);
  EXPECT_EQ(MatchName("{*}", ""), std::nullopt);
}

TEST(MatchNameTest, ManyPlaceholdersEndSoon) {
  // Without a memory of dead ends this takes some 1,000^8 steps.
  EXPECT_EQ(MatchName("{**}a{**}a{**}a{**}a{**}a{**}a{**}a{**}b", std::string(1000, 'a')), std::nullopt);
}

TEST(ExpandNameTest, PutsTheCapturesInOrder) {
  EXPECT_EQ(ExpandName("m.{*}.x.{**}", {"3", "y.z"}), "m.3.x.y.z");
  EXPECT_EQ(ExpandName("plain", {}), "plain");
}

TEST(CheckRulesTest, RefusesWhatCouldNeverWork) {
  const auto message = [](Rule rule) { return CheckRules({{Rename{"a", "b"}, std::move(rule)}}).message(); };
  EXPECT_EQ(message(Rename{"{*}.a", "b.{*}"}), "");
  EXPECT_THAT(message(Rename{"", "b"}), HasSubstr("rule 2: a name is empty; write one"));
  EXPECT_THAT(message(Rename{"a.{x}", "b"}), HasSubstr("brace"));
  EXPECT_THAT(message(Rename{"{*}", "b"}), HasSubstr("placeholders"));
  EXPECT_THAT(message(Rename{"{*}", "{**}"}), HasSubstr("placeholders"));
  EXPECT_THAT(message(Fuse{{"a"}, "b", 0}), HasSubstr("lists 1 names"));
  EXPECT_THAT(message(Fuse{{"a", "a"}, "b", 0}), HasSubstr("twice"));
  EXPECT_THAT(message(Split{"a", {"b", "c"}, -1}), HasSubstr("dim -1"));
  EXPECT_THAT(message(Tie{"a", {}}), HasSubstr("lists 0 names"));
  EXPECT_THAT(message(NotSent{"{"}), HasSubstr("brace"));
  EXPECT_THAT(message(Rename{std::string(2000, 'x'), "b"}), HasSubstr("1024"));
  EXPECT_THAT(message(NotSent{"{*}{*}{*}{*}{*}{*}{*}{*}{*}"}), HasSubstr("9 placeholders; at most 8"));
}

TEST(RulesJsonTest, ReadsEveryKind) {
  const auto rules = ParseRules(R"({"version": 1, "rules": [
      {"rename": "model.{**}", "to": "{**}"},
      {"fuse": ["{*}.q", "{*}.k"], "to": "{*}.qk", "dim": 1},
      {"split": "gu", "to": ["g", "u"]},
      {"tie": "wte", "to": ["wte", "lm_head"]},
      {"not_sent": "{**}.inv_freq", "side": "inference"},
      {"not_sent": "step"}]})");
  ASSERT_TRUE(rules.ok()) << rules.status().ToString();
  EXPECT_EQ(rules->rules,
            (std::vector<Rule>{Rename{"model.{**}", "{**}"}, Fuse{{"{*}.q", "{*}.k"}, "{*}.qk", 1},
                               Split{"gu", {"g", "u"}, 0}, Tie{"wte", {"wte", "lm_head"}},
                               NotSent{"{**}.inv_freq", Side::kInference}, NotSent{"step"}}));
  EXPECT_EQ(*ParseRules(ToJson(*rules)), *rules);
}

TEST(RulesJsonTest, SaysWhichRuleIsWrongAndWhy) {
  const auto message = [](std::string_view json) { return ParseRules(json).status().message(); };
  EXPECT_THAT(message("{"), HasSubstr("not JSON"));
  EXPECT_THAT(message("[]"), HasSubstr("list 'rules'"));
  EXPECT_THAT(message(R"({"rules": [], "extra": 1})"), HasSubstr("'extra'"));
  EXPECT_THAT(message(R"({"rules": [], "version": 2})"), HasSubstr("version"));
  EXPECT_THAT(message(R"({"rules": [{"rename": "a", "to": "b"}, {"rename": "a"}]})"),
              HasSubstr("rule 2: it has no 'to'"));
  EXPECT_THAT(message(R"({"rules": [{"rename": 3, "to": "b"}]})"), HasSubstr("rule 1: 'rename'"));
  EXPECT_THAT(message(R"({"rules": [{"rename": "a", "to": "b", "dim": 1}]})"), HasSubstr("member"));
  EXPECT_THAT(message(R"({"rules": [{"fuse": ["a", 1], "to": "b"}]})"), HasSubstr("list of names"));
  EXPECT_THAT(message(R"({"rules": [{"fuse": ["a", "b"], "to": "c", "dim": -1}]})"), HasSubstr("'dim'"));
  EXPECT_THAT(message(R"({"rules": [{"not_sent": "a", "side": "left"}]})"), HasSubstr("'side'"));
  EXPECT_THAT(message(R"({"rules": [7]})"), HasSubstr("object"));
  EXPECT_THAT(message(R"({"rules": [{}]})"), HasSubstr("none of"));
  EXPECT_THAT(message(std::string(100, '[')), HasSubstr("deep"));
}

/// One rank that holds all of these.
Layout Holding1(const std::vector<TensorInfo>& tensors) { return *DdpLayout(tensors, 1); }

std::string WhyNot(const NameRules& rules, const std::vector<TensorInfo>& trainers,
                   const std::vector<TensorInfo>& inference) {
  return ResolveLinks(rules, Holding1(trainers), Holding1(inference)).status().message();
}

TensorInfo T(const char* name, Shape shape = {4, 2}, DType dtype = DType::kBF16) {
  return {name, dtype, shape};
}

TEST(ResolveLinksTest, FusesAndSplitsAlongADimension) {
  const NameRules rules{
      {Fuse{{"{*}.q", "{*}.k", "{*}.v"}, "{*}.qkv", 0}, Split{"{*}.gu", {"{*}.g", "{*}.u"}, 1}}};
  const auto links =
      ResolveLinks(rules, Holding1({T("0.v", {1, 3}), T("0.gu", {2, 5}), T("0.q", {4, 3}), T("0.k", {2, 3})}),
                   Holding1({T("0.qkv", {7, 3}), T("0.g", {2, 4}), T("0.u", {2, 1}, DType::kF32)}));
  ASSERT_TRUE(links.ok()) << links.status().ToString();
  EXPECT_THAT(
      *links,
      ElementsAre(
          Link{.src_tensor = 2, .dst_tensor = 0, .dim = 0, .src_start = 0, .dst_start = 0, .extent = 4},
          Link{.src_tensor = 3, .dst_tensor = 0, .dim = 0, .src_start = 0, .dst_start = 4, .extent = 2},
          Link{.src_tensor = 0, .dst_tensor = 0, .dim = 0, .src_start = 0, .dst_start = 6, .extent = 1},
          Link{.src_tensor = 1, .dst_tensor = 1, .dim = 1, .src_start = 0, .dst_start = 0, .extent = 4},
          Link{.src_tensor = 1,
               .dst_tensor = 2,
               .dim = 1,
               .src_start = 4,
               .dst_start = 0,
               .extent = 1,
               .transform = Transform::kCast}));
}

TEST(ResolveLinksTest, TheFirstRuleThatMatchesCounts) {
  const NameRules rules{{Rename{"a.x", "b.y"}, Rename{"a.{*}", "c.{*}"}}};
  EXPECT_EQ(WhyNot(rules, {T("a.x"), T("a.z"), T("same")}, {T("same"), T("b.y"), T("c.z")}), "");
}

TEST(ResolveLinksTest, ListsNamesWithoutAPartnerOnBothSides) {
  std::vector<TensorInfo> many;
  for (int i = 10; i < 23; ++i) many.push_back({"t" + std::to_string(i), DType::kF32, {1}});
  const std::string message = WhyNot({{Rename{"t22", "gone"}}}, many, {T("other")});
  EXPECT_THAT(message, HasSubstr("13 tensors of the trainers"));
  EXPECT_THAT(message, HasSubstr("'t10', 't11'"));
  EXPECT_THAT(message, HasSubstr("'t19' and 3 more"));
  EXPECT_THAT(message, Not(HasSubstr("'t20'")));
  EXPECT_THAT(message, HasSubstr("1 tensor of the inference side that no trainer sends: 'other'"));
  EXPECT_THAT(WhyNot({{Rename{"a", "gone"}}}, {T("a")}, {}), HasSubstr("'a' (as 'gone')"));
}

TEST(ResolveLinksTest, NotSentExcusesEitherSide) {
  const NameRules rules{{NotSent{"step", Side::kTrainers}, NotSent{"{**}.inv_freq", Side::kInference}}};
  EXPECT_EQ(WhyNot(rules, {T("w"), T("step")}, {T("w"), T("r.inv_freq")}), "");
  EXPECT_NE(WhyNot(rules, {T("w"), T("r.inv_freq")}, {T("w")}), "");
  EXPECT_NE(WhyNot(rules, {T("w")}, {T("w"), T("step")}), "");
}

TEST(ResolveLinksTest, ShowsBothShapesAndBothDTypes) {
  const std::string shapes = WhyNot({}, {T("w", {4, 2})}, {T("w", {2, 4})});
  EXPECT_THAT(shapes, HasSubstr("[4, 2]"));
  EXPECT_THAT(shapes, HasSubstr("[2, 4]"));
  const std::string dtypes = WhyNot({}, {T("w", {4}, DType::kF32)}, {T("w", {4}, DType::kI8)});
  EXPECT_THAT(dtypes, HasSubstr("F32"));
  EXPECT_THAT(dtypes, HasSubstr("I8"));
}

TEST(ResolveLinksTest, RefusesFusionsAndSplitsThatDoNotAddUp) {
  const NameRules fuse{{Fuse{{"a", "b"}, "ab", 0}}};
  EXPECT_EQ(WhyNot(fuse, {T("a", {1, 2}), T("b", {3, 2})}, {T("ab", {4, 2})}), "");
  EXPECT_THAT(WhyNot(fuse, {T("a", {1, 2}), T("b", {3, 2})}, {T("ab", {5, 2})}), HasSubstr("'b' [3, 2]"));
  EXPECT_THAT(WhyNot(fuse, {T("a", {1, 2}), T("b", {3, 3})}, {T("ab", {4, 2})}),
              HasSubstr("cannot make 'ab' [4, 2]"));
  EXPECT_THAT(WhyNot(fuse, {T("a", {1, 2})}, {T("ab", {4, 2})}), HasSubstr("no tensor for 'b'"));
  EXPECT_THAT(WhyNot({{Fuse{{"a", "b"}, "ab", 2}}}, {T("a"), T("b")}, {T("ab", {8, 2})}),
              HasSubstr("dimension 2"));
  EXPECT_THAT(WhyNot(fuse, {T("a"), T("b")}, {T("c")}), HasSubstr("'a' (as 'ab'), 'b' (as 'ab')"));
  const NameRules split{{Split{"ab", {"a", "b"}, 0}}};
  EXPECT_THAT(WhyNot(split, {T("ab", {4, 2})}, {T("a", {1, 2}), T("b", {1, 2})}),
              HasSubstr("sum up to 2, not its own"));
  EXPECT_THAT(WhyNot(split, {T("ab", {4, 2})}, {T("a", {1, 2}), T("b", {3, 3})}),
              HasSubstr("cannot make 'b'"));
  EXPECT_THAT(WhyNot(split, {T("ab", {4, 2})}, {T("a", {1, 2})}), HasSubstr("'ab' (as 'b')"));
}

TEST(ResolveLinksTest, RefusesTwoSourcesForOnePlace) {
  EXPECT_THAT(WhyNot({{Rename{"a", "b"}}}, {T("a"), T("b")}, {T("b")}), HasSubstr("filled twice"));
  EXPECT_THAT(WhyNot({{Fuse{{"a", "b"}, "c", 0}}}, {T("c", {8, 2}), T("a"), T("b")}, {T("c", {8, 2})}),
              HasSubstr("filled twice"));
  EXPECT_THAT(WhyNot({{Split{"ab", {"a", "b"}, 0}}}, {T("a"), T("ab", {8, 2})}, {T("a"), T("b")}),
              HasSubstr("filled twice"));
  EXPECT_THAT(WhyNot({{Fuse{{"{*}{*}.a", "{*}{*}.b"}, "{*}{*}", 0}}}, {T("x.y.a"), T("xy.a")}, {T("xy")}),
              Not(HasSubstr("one fusion")));
}

}  // namespace
}  // namespace weightcast::plan
