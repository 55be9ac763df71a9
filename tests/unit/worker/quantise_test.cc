// FP8 on the host and the launches that do the same on devices, run by their host versions.
#include "worker/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "fp8_reference.h"
#include "unit/worker/host_launch.h"
#include "worker/block_item.h"

namespace weightcast::worker {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

struct Made {
  Bytes values;
  Bytes scales;
};

Box RandomBlocks(std::mt19937& random, const Shape& shape) {
  Box box{{0, 0}, {0, 0}};
  for (size_t d = 0; d < 2; ++d) {
    const auto blocks = static_cast<uint32_t>((shape[d] + 127) / 128);
    const int64_t first = random() % blocks;
    const int64_t end = first + 1 + random() % (blocks - static_cast<uint32_t>(first));
    box.offset[d] = first * 128;
    box.size[d] = std::min(end * 128, shape[d]) - box.offset[d];
  }
  return box;
}

Box ScalesOf(const Box& box) {
  return {{box.offset[0] / 128, box.offset[1] / 128}, {(box.size[0] + 127) / 128, (box.size[1] + 127) / 128}};
}

TEST(QuantiseBlocks, GivesTheBytesOfTheReference) {
  std::mt19937 random(7);
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const test::Fp8Tensor tensor(1 + random() % 400, 1 + random() % 400, kDTypes[seed % 3], seed);
    const Box all = WholeOf(tensor.shape());
    const int64_t stride = tensor.shape()[1] + random() % 3;
    const Bytes source = tensor.Source(all, stride, 1);
    const int64_t columns = tensor.shape()[1];
    const int64_t across = tensor.scales_shape()[1];
    Made made{Bytes(tensor.Values(all).size()), Bytes(tensor.Scales(WholeOf(tensor.scales_shape())).size())};
    const HostMatrix matrix{.data = source.data(),
                            .dtype = tensor.dtype(),
                            .rows = tensor.shape()[0],
                            .columns = columns,
                            .stride = stride * tensor.element()};
    QuantiseBlocks(matrix, {.values = made.values.data(), .values_stride = columns});
    EXPECT_EQ(made.values, tensor.Values(all)) << seed;
    QuantiseBlocks(matrix, {.scales = made.scales.data(), .scales_stride = across * 4});
    EXPECT_EQ(made.scales, tensor.Scales(WholeOf(tensor.scales_shape()))) << seed;
  }
}

TEST(QuantiseLaunch, GivesTheBytesOfTheReferenceForAnyBlocksOfAShard) {
  std::mt19937 random(11);
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const test::Fp8Tensor tensor(1 + random() % 600, 1 + random() % 600, kDTypes[seed % 3], seed);
    const Box shard = RandomBlocks(random, tensor.shape());
    const int64_t stride = shard.size[1] + random() % 5;
    const Bytes source = tensor.Source(shard, stride, 1);
    Box box = RandomBlocks(random, shard.size);
    for (size_t d = 0; d < 2; ++d) box.offset[d] += shard.offset[d];
    BlockPart part{.source = {.data = source.data(),
                              .dtype = tensor.dtype(),
                              .shard = shard,
                              .strides = {stride, 1},
                              .box = box}};
    Made made{Bytes(tensor.Values(box).size()), Bytes(tensor.Scales(ScalesOf(box)).size())};
    part.target = made.values.data();
    part.stride = box.size[1];
    const auto values = QuantiseLaunch(part);
    ASSERT_TRUE(values);
    RunOnHost(*values);
    EXPECT_EQ(made.values, tensor.Values(box)) << seed;
    part.scales = true;
    part.target = made.scales.data();
    part.stride = ScalesOf(box).size[1] * 4;
    const auto scales = QuantiseLaunch(part);
    ASSERT_TRUE(scales);
    RunOnHost(*scales);
    EXPECT_EQ(made.scales, tensor.Scales(ScalesOf(box))) << seed;
  }
}

/// A plan that sends the scales of one shard, of which an item may be any part.
struct ScalesPlan {
  ScalesPlan(const test::Fp8Tensor& tensor, const Box& shard, std::span<std::byte> bytes) {
    const TensorInfo weight{"w", tensor.dtype(), tensor.shape()};
    const TensorInfo scales{"s", DType::kF32, tensor.scales_shape()};
    auto memory = std::make_shared<SourceMemory>();
    memory->shards = {{.tensor = weight, .part = shard, .memory = HostMemory(bytes)},
                      {.tensor = scales, .part = ScalesOf(shard)}};
    memory->computed_from = {0};
    plan.memory = std::move(memory);
    plan.sources = {1};
    plan.table.source_tensors = plan.table.destination_tensors = {scales};
    plan.table.source_shards = plan.table.destination_shards = {{0, 0, ScalesOf(shard)}};
    plan.table.routes = {{.src_box = ScalesOf(shard), .dst_offset = ScalesOf(shard).offset}};
  }
  SendPlan plan;
};

TEST(BlockParts, MakeAnyPartOfTheScalesOfAShard) {
  std::mt19937 random(13);
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const test::Fp8Tensor tensor(1 + random() % 600, 1 + random() % 900, kDTypes[seed % 3], seed);
    const Box shard = RandomBlocks(random, tensor.shape());
    Bytes source = tensor.Source(shard, shard.size[1], 1);
    const ScalesPlan scene(tensor, shard, source);
    const Bytes expected = tensor.Scales(ScalesOf(shard));
    const auto elements = static_cast<int64_t>(expected.size() / 4);
    const int64_t first = random() % elements;
    const Item item{
        .route = 0, .first = first, .count = 1 + static_cast<int64_t>(random()) % (elements - first)};
    ASSERT_TRUE(IsOfBlocks(scene.plan, item));
    for (const bool launched : {false, true}) {
      Bytes made(static_cast<size_t>(item.count) * 4);
      const auto parts = BlockPartsOf(scene.plan, item, made.data());
      EXPECT_LE(parts.size(), 3U);
      for (const BlockPart& part : parts) {
        if (launched) {
          RunOnHost(*QuantiseLaunch(part));
        } else {
          ASSERT_TRUE(QuantiseOnHost(scene.plan, item, part).ok());
        }
      }
      EXPECT_TRUE(std::ranges::equal(made, std::span(expected).subspan(first * 4, made.size()))) << seed;
    }
  }
}

TEST(QuantiseLaunch, HasNoKernelForColumnsAndOddAddresses) {
  const Bytes source(4096);
  BlockPart part{.source = {.data = source.data(),
                            .dtype = DType::kBF16,
                            .shard = {{0, 0}, {8, 8}},
                            .strides = {8, 1},
                            .box = {{0, 0}, {8, 8}}},
                 .stride = 8};
  EXPECT_TRUE(QuantiseLaunch(part));
  part.source.strides = {1, 8};
  EXPECT_FALSE(QuantiseLaunch(part));
  part.source.strides = {8, 1};
  part.source.data += 1;
  EXPECT_FALSE(QuantiseLaunch(part));
}

}  // namespace
}  // namespace weightcast::worker
