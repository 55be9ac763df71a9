#include "plan/layout_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/models.h"

namespace weightcast::plan {
namespace {

using ::testing::HasSubstr;

std::string Why(std::string_view json) { return ParseLayout(json).status().message(); }

/// A layout with one tensor that has these members besides its name, dtype and shape [4, 2].
std::string WithTensor(const std::string& members, const std::string& patterns = "") {
  return R"({"ranks": 4, "patterns": [)" + patterns +
         R"(], "tensors": [{"name": "w", "dtype": "F32", "shape": [4, 2], )" + members + "}]}";
}

TEST(LayoutJsonTest, ReadsPatternsWithAndWithoutStrides) {
  const auto layout = ParseLayout(R"({"version": 1, "ranks": 4,
      "patterns": [{"mesh": [2, 2], "placements": ["replicate", 0]},
                   {"first_rank": 1, "mesh": [2], "strides": [2], "placements": [1]}],
      "tensors": [{"name": "a", "dtype": "BF16", "shape": [4, 2], "pattern": 0},
                  {"name": "b", "dtype": "F32", "shape": [4, 2], "pattern": 1},
                  {"name": "c", "dtype": "F32", "shape": [3], "boxes": [[0, [0], [1]], [2, [1], [2]]]},
                  {"name": "d", "dtype": "F32", "shape": [3], "boxes": [], "not_sent": true}]})");
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  EXPECT_EQ(layout->BoxOf(0, 3), (Box{{2, 0}, {2, 2}}));
  EXPECT_EQ(layout->BoxOf(1, 3), (Box{{0, 1}, {4, 1}}));
  EXPECT_EQ(layout->BoxOf(1, 2), std::nullopt);
  EXPECT_EQ(layout->BoxOf(2, 2), (Box{{1}, {2}}));
  EXPECT_TRUE(layout->not_sent(3));
}

TEST(LayoutJsonTest, EnginesSideBySideComeBack) {
  const Layout layout = *TpLayout(Qwen2_5_0_5B(DType::kBF16), 2, 3);
  const std::string json = ToJson(layout);
  const auto read = ParseLayout(json);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(ToJson(*read), json);
  EXPECT_EQ(read->BoxOf(0, 5), layout.BoxOf(0, 5));
}

TEST(LayoutJsonTest, ARankMayComeSeveralTimes) {
  const auto layout = ParseLayout(WithTensor(
      R"("parts": [{"boxes": [[0, [3, 0], [1, 2]], [0, [0, 0], [1, 2]], [1, [1, 0], [2, 2]]]},
                   {"boxes": [[2, [0, 0], [4, 2]], [2, [0, 0], [4, 2]]]}])"));
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  EXPECT_EQ(layout->BoxesOf(0, 0), (std::vector<Box>{{{0, 0}, {1, 2}}, {{3, 0}, {1, 2}}}));
  EXPECT_EQ(layout->BoxesOf(0, 2), (std::vector<Box>{WholeOf({4, 2}), WholeOf({4, 2})}));
  const auto read = ParseLayout(ToJson(*layout));
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(ToJson(*read), ToJson(*layout));
  EXPECT_THAT(Why(WithTensor(R"("boxes": [[0, [0, 0], [4, 2]], [0, [1, 0], [1, 2]]])")),
              HasSubstr("overlaps"));
  // Parts are engines: the ranks of one are not in another.
  EXPECT_THAT(
      Why(WithTensor(R"("parts": [{"boxes": [[1, [0, 0], [4, 2]]]}, {"boxes": [[1, [0, 0], [4, 2]]]}])")),
      HasSubstr("rising order"));
}

TEST(LayoutJsonTest, SaysWhatIsWrong) {
  EXPECT_THAT(Why("{"), HasSubstr("not JSON"));
  EXPECT_THAT(Why("[]"), HasSubstr("object"));
  EXPECT_THAT(Why(R"({"ranks": 0})"), HasSubstr("'ranks'"));
  EXPECT_THAT(Why(R"({"ranks": 1.5})"), HasSubstr("'ranks'"));
  EXPECT_THAT(Why(R"({"ranks": 1, "tensor": []})"), HasSubstr("'tensor'"));
  EXPECT_THAT(Why(R"({"ranks": 1, "version": 2})"), HasSubstr("version 2"));
  EXPECT_THAT(Why(R"({"ranks": 1, "tensors": [{}]})"), HasSubstr("tensor 0: it has no 'name'"));
  EXPECT_THAT(Why(WithTensor(R"("boxes": 3)")), HasSubstr("must be a list"));
  EXPECT_THAT(Why(WithTensor(R"("boxes": [[0, [0, 0], [4]]])")), HasSubstr("one of each per dimension"));
  EXPECT_THAT(Why(WithTensor(R"("boxes": [[4, [0, 0], [4, 2]]])")), HasSubstr("rising order"));
  EXPECT_THAT(Why(WithTensor(R"("boxes": [[1, [0, 0], [4, 2]], [0, [0, 0], [4, 2]]])")),
              HasSubstr("rising order"));
  EXPECT_THAT(Why(WithTensor(R"("boxes": [[0, [0, 0], [3, 2]]])")),
              HasSubstr("no rank holds the box [3:4, 0:2]"));
  EXPECT_THAT(Why(WithTensor(R"("boxes": [[0, [0, 0], [4, 2]], [1, [1, 0], [1, 2]]])")),
              HasSubstr("overlaps"));
  EXPECT_THAT(Why(WithTensor(R"("boxes": [[0, [-1, 0], [4, 2]]])")), HasSubstr("must have integers in [0, "));
  EXPECT_THAT(Why(WithTensor(R"("boxes": [[0, [18446744073709551615, 0], [4, 2]]])")),
              HasSubstr("must have integers in [0, "));
  EXPECT_THAT(Why(WithTensor(R"("pattern": 0)")), HasSubstr("'pattern'"));
  EXPECT_THAT(Why(WithTensor(R"("pattern": 0)", R"({"mesh": [5], "placements": [0]})")),
              HasSubstr("ranks 0 to 4"));
  EXPECT_THAT(Why(WithTensor(R"("pattern": 0)", R"({"mesh": [2], "placements": [2]})")),
              HasSubstr("dimension 2"));
  EXPECT_THAT(Why(WithTensor(R"("pattern": 0)", R"({"mesh": [2], "placements": []})")),
              HasSubstr("one of each per dimension"));
  EXPECT_THAT(Why(WithTensor(R"("pattern": 0)", R"({"mesh": [2], "placements": ["shard"]})")),
              HasSubstr("replicate"));
  EXPECT_THAT(Why(WithTensor(R"("parts": [{"pattern": 0}, {"pattern": 0, "first_rank": 1}])",
                             R"({"mesh": [2], "placements": [0]})")),
              HasSubstr("ranks of their own"));
  EXPECT_THAT(Why(WithTensor(R"("parts": [])")), HasSubstr("no rank holds any"));
  EXPECT_THAT(Why(WithTensor(R"("not_sent": true)")), HasSubstr("must have either"));
  EXPECT_THAT(Why(R"({"ranks": 1, "tensors": [{"name": "w", "dtype": "BF15", "shape": []}]})"),
              HasSubstr("dtype"));
  EXPECT_THAT(
      Why(R"({"ranks": 1, "tensors": [{"name": "w", "dtype": "F32", "shape": [], "boxes": [[0, [], []]]},
                                              {"name": "w", "dtype": "F32", "shape": [], "boxes": [[0, [], []]]}]})"),
      HasSubstr("'w' is given twice"));
}

TEST(LayoutJsonTest, DeepNestingIsRefusedBeforeItCostsMemory) {
  EXPECT_THAT(Why(std::string(1 << 20, '[')), HasSubstr("deep"));
  EXPECT_THAT(Why(R"({"ranks": 1, "tensors": [{"name": "[[[[[[[[[[[[\"[[[", "dtype": "F32", "shape": []}]})"),
              HasSubstr("must have either"));
}

}  // namespace
}  // namespace weightcast::plan
