// The kernels that are launched for a box give the bytes that Gather gives, run by their host versions.
#include "worker/gather_launch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "unit/worker/host_launch.h"
#include "worker/convert.h"

namespace weightcast::worker {
namespace {

constexpr int64_t kMargin = 4096;  ///< Bytes in front of a shard, for strides that go backwards.

struct Buffers {
  explicit Buffers(std::mt19937& random) : source(1 << 18), host(1 << 14), device(1 << 14) {
    for (auto& word : source) word = {random(), random(), random(), random()};
  }
  struct alignas(16) Line {
    uint64_t a = 0, b = 0, c = 0, d = 0;
  };
  static std::byte* At(std::vector<Line>& lines) { return reinterpret_cast<std::byte*>(lines.data()); }
  std::vector<Line> source;
  std::vector<Line> host;
  std::vector<Line> device;
};

/// A GPU ends the context at an access that is not aligned; the host does not mind.
void ExpectAligned(const device::Launch& launch, uint64_t from, uint64_t to) {
  const auto* const box = std::get_if<kernels::GatherParameters>(&launch.parameters);
  if (box == nullptr) return;
  const std::string name = launch.kernel;
  const bool copies = name.find('_') == name.rfind('_');
  const uint64_t in = copies ? std::stoul(name.substr(name.find('_') + 1)) : box->group != 0 ? 16 : from;
  const uint64_t out = copies ? in : box->group != 0 ? 16 : to;
  EXPECT_EQ(box->source % in, 0U) << name;
  EXPECT_EQ(box->target % out, 0U) << name;
  for (int d = 0; d < kernels::kBoxDims; ++d) {
    EXPECT_TRUE(box->size[d] <= 1 || static_cast<uint64_t>(box->stride[d]) % in == 0) << name;
  }
}

struct Pair {
  DType from;
  DType to;
};
std::vector<Pair> Pairs() {
  std::vector<Pair> pairs = {{DType::kU8, DType::kU8},   {DType::kF8E4M3, DType::kF8E4M3},
                             {DType::kI16, DType::kI16}, {DType::kI32, DType::kI32},
                             {DType::kF64, DType::kF64}, {DType::kC64, DType::kC64}};
  for (const DType from : {DType::kF32, DType::kF16, DType::kBF16})
    for (const DType to : {DType::kF32, DType::kF16, DType::kBF16}) pairs.push_back({from, to});
  return pairs;
}

TEST(GatherLaunch, GivesTheBytesOfGather) {
  std::mt19937 random(11);
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  std::set<std::string> used;
  bool groups = false;
  Buffers buffers(random);
  for (const auto& [from, to] : Pairs()) {
    for (int round = 0; round < 300; ++round) {
      std::ranges::fill(buffers.host, Buffers::Line{});
      std::ranges::fill(buffers.device, Buffers::Line{});
      const bool wide = pick(0, 1) == 0;  // Sizes that vectors fit.
      GatherSource source{.data = Buffers::At(buffers.source) + kMargin,
                          .dtype = from,
                          .shard = {},
                          .strides = {},
                          .box = {}};
      for (int64_t d = pick(0, 4); d > 0; --d) {
        const int64_t unit = wide && d == 1 ? 16 : 1;
        const int64_t offset = unit * pick(0, 1);
        const int64_t size = d == 1 ? unit * pick(1, 4) : pick(1, 5);
        source.shard.offset.push_back(0);
        source.shard.size.push_back(offset + size + unit * pick(0, 1));
        source.box.offset.push_back(offset);
        source.box.size.push_back(size);
      }
      source.strides = DenseStrides(source.shard.size);
      if (pick(0, 2) == 0) std::ranges::reverse(source.strides);
      if (pick(0, 3) == 0 && !source.strides.empty()) source.strides[0] = pick(-3, 3);
      const int64_t all = ElementsOf(source.box.size);
      const int64_t first = wide ? pick(0, (all - 1) / 16) * 16 : pick(0, all - 1);
      const int64_t count = pick(0, 1) == 0 ? all - first : pick(1, all - first);
      std::byte* const host = Buffers::At(buffers.host);
      std::byte* const device = Buffers::At(buffers.device);
      Gather(source, first, count, to, host);
      const auto launch = GatherLaunch(source, first, count, to, device);
      ASSERT_TRUE(launch) << NameOf(from) << " to " << NameOf(to);
      ASSERT_NO_FATAL_FAILURE(RunOnHost(*launch));
      ExpectAligned(*launch, static_cast<uint64_t>(BitsOf(from)) / 8, static_cast<uint64_t>(BitsOf(to)) / 8);
      // Behind the last element nothing is written either.
      ASSERT_EQ(std::memcmp(host, device, buffers.host.size() * sizeof(Buffers::Line)), 0)
          << launch->kernel << ", round " << round;
      used.insert(launch->kernel);
      const auto* const box = std::get_if<kernels::GatherParameters>(&launch->parameters);
      groups = groups || (box != nullptr && box->group != 0);
    }
  }
  EXPECT_TRUE(groups);
  for (const char* name : {"gather_1", "gather_2", "gather_4", "gather_8", "gather_16"})
    EXPECT_TRUE(used.contains(name)) << name;
  for (const char* cast : {"f32_bf16", "f32_f16", "bf16_f32", "f16_f32", "bf16_f16", "f16_bf16"}) {
    EXPECT_TRUE(used.contains(std::string("cast_") + cast)) << cast;
    EXPECT_TRUE(used.contains(std::string("gather_") + cast)) << cast;
  }
}

GatherSource Dense(std::byte* data, DType dtype, const Shape& size) {
  const Box whole{Shape(size.size(), 0), size};
  return {.data = data, .dtype = dtype, .shard = whole, .strides = DenseStrides(size), .box = whole};
}

TEST(GatherLaunch, HasNoKernelForWhatTheHostMustDo) {
  std::mt19937 random(1);
  Buffers buffers(random);
  std::byte* const at = Buffers::At(buffers.source);
  std::byte* const to = Buffers::At(buffers.device);
  EXPECT_TRUE(GatherLaunch(Dense(at, DType::kF32, {64}), 0, 64, DType::kBF16, to));
  EXPECT_FALSE(GatherLaunch(Dense(at, DType::kF4, {64}), 0, 64, DType::kF4, to)) << "half a byte";
  EXPECT_FALSE(GatherLaunch(Dense(at, DType::kF64, {64}), 0, 64, DType::kF32, to)) << "no such cast";
  EXPECT_FALSE(GatherLaunch(Dense(at + 2, DType::kF32, {64}), 0, 64, DType::kBF16, to)) << "source";
  EXPECT_FALSE(GatherLaunch(Dense(at + 2, DType::kF32, {64}), 0, 64, DType::kF32, to)) << "source";
  EXPECT_FALSE(GatherLaunch(Dense(at, DType::kF32, {64}), 0, 64, DType::kBF16, to + 1)) << "target";
  GatherSource many = Dense(at, DType::kF32, Shape(9, 2));
  EXPECT_TRUE(GatherLaunch(many, 0, 512, DType::kBF16, to)) << "they merge";
  std::ranges::reverse(many.strides);
  EXPECT_FALSE(GatherLaunch(many, 0, 512, DType::kBF16, to)) << "nine dimensions";
}

}  // namespace
}  // namespace weightcast::worker
