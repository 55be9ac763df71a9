#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "system/fp8_scene.h"
#include "system/jobs.h"

// The rule `quantise`: engines get FP8 and scales from trainers in host memory.
namespace weightcast::test {
namespace {

using testing::HasSubstr;

class Fp8 : public Job, public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    settings_["transport"] = GetParam();
    StartController();
  }
  void Run(Fp8Scene scene) { Fp8Run(std::move(scene), Options(0, 1), memory_.Calls()).Go(); }

  Fp8HostMemory memory_;
};

TEST_P(Fp8, RandomScenesGiveTheBytesOfTheReference) {
  for (uint32_t seed = 0; seed < 6 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    StartController();
    Run(RandomFp8Scene(seed));
  }
}

TEST_P(Fp8, AMatrixThatIsWiderThanAStrip) {
  const Shape shape = {130, 17'000};
  Run({.shape = shape,
       .trainers = {{WholeOf(shape)}, {WholeOf(shape)}},
       .values = {{CutAtBlocks(shape, 0, 2)[0]}, {CutAtBlocks(shape, 0, 2)[1]}},
       .scales = {{WholeOf({2, 133})}, {WholeOf({2, 133})}},
       .versions = 1});
}

TEST_P(Fp8, AMatrixOfSeveralTransfers) {
  const Shape shape = {2050, 4200};
  Run({.shape = shape,
       .trainers = {{WholeOf(shape)}},
       .values = {{WholeOf(shape)}},
       .scales = {{WholeOf({17, 33})}},
       .versions = 1});
}

TEST_P(Fp8, WhatAReaderGivesIsQuantised) {
  const Shape shape = {300, 500};
  Run({.shape = shape,
       .dtype = DType::kF32,
       .trainers = {{CutAtBlocks(shape, 1, 2)[0]}, {CutAtBlocks(shape, 1, 2)[1]}},
       .values = {{CutAtBlocks(shape, 0, 2)[0]}, {CutAtBlocks(shape, 0, 2)[1]}},
       .scales = {{WholeOf({3, 4})}, {WholeOf({3, 4})}},
       .reads = true});
}

TEST_P(Fp8, InACommitGroupNamesStayThoseOfTheModel) {
  const Shape shape = {140, 130};
  WorkerOptions options = Options(0, 1);
  options.commit_group = {{"policy", 1}};
  Fp8Run({.shape = shape,
          .trainers = {{WholeOf(shape)}},
          .values = {{WholeOf(shape)}},
          .scales = {{WholeOf({2, 2})}},
          .versions = 1},
         options, memory_.Calls())
      .Go();
}

TEST_P(Fp8, ATrainerWhoseBoxCutsABlockIsRefused) {
  const auto trainer = ConnectTrainer(0, 2);
  ASSERT_TRUE(trainer);
  std::vector<std::byte> bytes(200 * 256 * 2);
  const auto refusal = [&](const Box& box, const std::string& name = "model.a.weight") {
    return trainer
        ->Register({.shards = {{.tensor = {name, DType::kBF16, {512, 256}},
                                .part = box,
                                .memory = HostMemory(bytes)}}},
                   {.rules = Fp8Rules()})
        .message();
  };
  EXPECT_EQ(refusal({{0, 0}, {128, 256}}), "");
  EXPECT_THAT(refusal({{0, 0}, {200, 256}}),
              HasSubstr("tensor 'model.a.weight' [512, 256] is quantised in blocks of 128 x 128, but the box "
                        "[0:200, 0:256] of rank 0 cuts blocks; cut at multiples of 128"));
  EXPECT_THAT(refusal({{64, 0}, {128, 256}}), HasSubstr("cuts blocks"));
  // Shorter than a block, where the tensor ends.
  EXPECT_EQ(refusal({{384, 128}, {128, 128}}), "");
}

TEST_P(Fp8, TensorsThatCannotBeQuantisedAreRefusedByTheTrainer) {
  const auto trainer = ConnectTrainer();
  ASSERT_TRUE(trainer);
  std::vector<std::byte> bytes(4096);
  const auto shard = [&](const char* name, DType dtype, const Shape& shape) {
    return Shard{.tensor = {name, dtype, shape}, .part = WholeOf(shape), .memory = HostMemory(bytes)};
  };
  const auto refusal = [&](std::vector<Shard> shards) {
    return trainer->Register({.shards = std::move(shards)}, {.rules = Fp8Rules()}).message();
  };
  EXPECT_THAT(refusal({shard("model.norm.weight", DType::kBF16, {64})}), HasSubstr("two dimensions"));
  EXPECT_THAT(refusal({shard("model.a.weight", DType::kI8, {8, 8})}), HasSubstr("F32, F16 or BF16"));
  EXPECT_THAT(refusal({shard("model.a.weight", DType::kBF16, {8, 8}),
                       shard("a.weight_scale_inv", DType::kF32, {1, 1})}),
              HasSubstr("scales of tensor 'model.a.weight' would be named 'a.weight_scale_inv'"));
}

TEST_P(Fp8, AnEngineThatCutsABlockIsToldWhy) {
  const Shape shape = {512, 256};
  Fp8HostMemory memory;
  const auto allocate = memory.Calls().allocate;
  const auto trainer = ConnectTrainer();
  const auto engine = ConnectEngine("e");
  ASSERT_TRUE(trainer && engine);
  ASSERT_TRUE(trainer
                  ->Register({.shards = {{.tensor = {"model.a.weight", DType::kBF16, shape},
                                          .part = WholeOf(shape),
                                          .memory = allocate(512 * 256 * 2)}}},
                             {.rules = Fp8Rules()})
                  .ok());
  Registration registration;
  for (const Box& box : {Box{{0, 0}, {192, 256}}, Box{{192, 0}, {320, 256}}})
    registration.shards.push_back({.tensor = {"a.weight", DType::kF8E4M3, shape},
                                   .part = box,
                                   .memory = allocate(static_cast<size_t>(ElementsOf(box.size)))});
  registration.shards.push_back({.tensor = {"a.weight_scale_inv", DType::kF32, {4, 2}},
                                 .part = WholeOf({4, 2}),
                                 .memory = allocate(32)});
  Status status = engine->Register(std::move(registration), {});
  if (status.ok()) status = engine->Wait({}, In(60)).status();
  EXPECT_THAT(status.message(), HasSubstr("the box [0:192, 0:256] of inference rank 0 cuts blocks"));
}

INSTANTIATE_TEST_SUITE_P(All, Fp8, testing::Values("shm", "tcp"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace weightcast::test
