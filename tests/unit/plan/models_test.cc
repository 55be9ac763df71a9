#include "plan/models.h"

#include <gtest/gtest.h>

#include <numeric>

#include "plan/planner.h"
#include "plan/verify.h"

namespace weightcast::plan {
namespace {

int64_t Parameters(const std::vector<TensorInfo>& model) {
  return std::accumulate(model.begin(), model.end(), int64_t{0}, [](int64_t sum, const TensorInfo& tensor) {
    return sum + ElementsOf(tensor.shape);
  });
}

TEST(ModelsTest, Gpt2HasThePublishedSizes) {
  const auto model = Gpt2(DType::kBF16);
  EXPECT_EQ(model.size(), 148U);
  EXPECT_EQ(Parameters(model), 124'439'808);
}

TEST(ModelsTest, QwenHasThePublishedSizes) {
  const auto model = Qwen2_5_0_5B(DType::kBF16);
  EXPECT_EQ(model.size(), 290U);
  EXPECT_EQ(Parameters(model), 494'032'768);
  const auto layout = DdpLayout(model, 1);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->BytesOfRank(0), 988'065'536);
}

TEST(ModelsTest, TheLargeQwenHasThePublishedSizes) {
  const auto model = Qwen2_5_7B(DType::kBF16);
  EXPECT_EQ(model.size(), 339U);
  EXPECT_EQ(Parameters(model), 7'615'616'512);
  EXPECT_EQ(model.back().name, "lm_head.weight");
}

TEST(ModelsTest, AreFoundByName) {
  EXPECT_EQ(PresetModel("qwen2.5-7b", DType::kF32)->size(), 339U);
  EXPECT_EQ(PresetNames(), (std::vector<std::string>{"gpt2", "qwen2.5-0.5b", "qwen2.5-7b"}));
  EXPECT_EQ(PresetModel("gpt2", DType::kF32)->size(), 148U);
  EXPECT_EQ(PresetModel("qwen2.5-0.5b", DType::kF32)->size(), 290U);
  EXPECT_NE(PresetModel("gpt5", DType::kF32).status().message().find("gpt2, qwen2.5-0.5b, qwen2.5-7b"),
            std::string::npos);
}

TEST(ModelsTest, FsdpCutsDimensionZero) {
  const auto layout = FsdpLayout(Gpt2(DType::kBF16), 32);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->patterns().size(), 1U);
  int64_t bytes = 0;
  for (int rank = 0; rank < 32; ++rank) bytes += layout->BytesOfRank(rank);
  EXPECT_EQ(bytes, 124'439'808 * 2);
  EXPECT_EQ(layout->BoxOf(0, 31), (Box{{48701, 0}, {1556, 768}}));  // 50,257 rows in chunks of 1,571.
  EXPECT_TRUE(FsdpLayout(std::vector<TensorInfo>{{"scalar", DType::kF32, {}}}, 4).ok());
}

TEST(ModelsTest, TpCutsColumnsAndRowsAndReplicatesTheRest) {
  const auto gpt2 = TpLayout(Gpt2(DType::kBF16), 2);
  ASSERT_TRUE(gpt2.ok());
  const auto size = [](const Layout& layout, const char* name) {
    return layout.BoxOf(*layout.Find(name), 1)->size;
  };
  EXPECT_EQ(size(*gpt2, "h.0.attn.c_attn.weight"), (Shape{768, 2304}));  // Half of it is not half of each.
  EXPECT_EQ(size(*gpt2, "h.0.attn.c_attn.bias"), (Shape{2304}));
  EXPECT_EQ(size(*gpt2, "h.0.mlp.c_proj.weight"), (Shape{1536, 768}));
  EXPECT_EQ(size(*gpt2, "h.0.mlp.c_proj.bias"), (Shape{768}));
  EXPECT_EQ(size(*gpt2, "wte.weight"), (Shape{50257, 768}));  // An odd vocabulary is not cut.
  const auto qwen = TpLayout(Qwen2_5_0_5B(DType::kBF16), 4, 3);
  ASSERT_TRUE(qwen.ok());
  EXPECT_EQ(qwen->ranks(), 12);
  EXPECT_EQ(size(*qwen, "model.layers.3.self_attn.q_proj.weight"), (Shape{224, 896}));
  EXPECT_EQ(size(*qwen, "model.layers.3.self_attn.o_proj.weight"), (Shape{896, 224}));
  EXPECT_EQ(size(*qwen, "model.layers.3.mlp.down_proj.weight"), (Shape{896, 1216}));
  EXPECT_EQ(size(*qwen, "model.embed_tokens.weight"), (Shape{37984, 896}));
  EXPECT_EQ(size(*qwen, "model.norm.weight"), (Shape{896}));
  EXPECT_EQ(qwen->BoxOf(0, 5), qwen->BoxOf(0, 9));
  EXPECT_FALSE(TpLayout(Gpt2(DType::kBF16), 2, 0).ok());
  EXPECT_FALSE(TpLayout(Gpt2(DType::kBF16), 0, 1).ok());
  EXPECT_FALSE(DdpLayout(Gpt2(DType::kBF16), 0).ok());
}

TEST(ModelsTest, AnUnfusedModelHasViewsOfEachPartAndRulesThatFillThem) {
  const UnfusedModel model = Unfuse(Gpt2(DType::kBF16));
  EXPECT_EQ(model.tensors.size(), 148U + 4 * 12);
  EXPECT_EQ(Parameters(model.tensors), 124'439'808);
  const Layout engine = *TpLayout(model.tensors, 3);
  EXPECT_EQ(engine.BoxOf(*engine.Find("h.7.attn.c_attn_k.weight"), 1), (Box{{0, 256}, {768, 256}}));
  EXPECT_EQ(engine.BoxOf(*engine.Find("h.7.attn.c_attn_k.bias"), 1), (Box{{256}, {256}}));
  const Layout trainers = *FsdpLayout(Gpt2(DType::kBF16), 8);
  const PlanRequest request{trainers, engine, model.rules, Strategy::kBalanced};
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_TRUE(Verify(request, plan->table).ok());
}

}  // namespace
}  // namespace weightcast::plan
