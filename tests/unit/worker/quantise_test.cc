// FP8 on the host and the launches that do the same on devices, run by their host versions.
#include "worker/quantise.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "fp8_reference.h"
#include "kernels/host_kernels.h"
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

void RunOnHost(const device::Launch& launch) {
  const auto* const kernel = kernels::FindHostKernel(launch.kernel);
  ASSERT_NE(kernel, nullptr) << launch.kernel;
  auto parameters = launch.parameters;
  void* at = std::visit([](auto& each) { return static_cast<void*>(&each); }, parameters);
  kernel->run({.blocks = launch.blocks, .threads = launch.threads}, &at);
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
