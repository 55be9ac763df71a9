#include "worker/registration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "plan/box.h"
#include "worker/shards.h"

namespace weightcast::worker {
namespace {

using testing::HasSubstr;

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

std::array<float, 1000> g_memory{};

Memory Floats(size_t count) {
  return HostMemory(std::as_writable_bytes(std::span(g_memory)).first(count * 4));
}

Shard PlacedShard(std::string name, Shape shape, std::vector<Placement> placements) {
  return {.tensor = {std::move(name), DType::kF32, std::move(shape)},
          .part = Placed{.mesh = 0, .placements = std::move(placements)},
          .memory = Floats(1000)};
}

Registration OnMesh(std::vector<uint32_t> sizes, std::vector<uint32_t> coordinates,
                    std::vector<Shard> shards) {
  return {
      .shards = std::move(shards), .meshes = {{std::move(sizes)}}, .coordinates = {std::move(coordinates)}};
}

/// All of a 3 x 4 matrix of floats.
Registration Matrix() {
  return {
      .shards = {{.tensor = {"a.b", DType::kF32, {3, 4}}, .part = WholeOf({3, 4}), .memory = Floats(12)}}};
}

Box OnlyBox(const Registration& registration) {
  auto shards = ResolveShards(registration);
  EXPECT_TRUE(shards.ok()) << shards.status().ToString();
  return shards.ok() ? BoxOf(shards->front()) : Box();
}

/// Why it is refused; "" if it is not.
std::string Refusal(const Registration& registration) {
  auto shards = ResolveShards(registration);
  const Status status = shards.ok() ? CheckShards(*shards).status() : shards.status();
  EXPECT_TRUE(status.ok() || status.code() == Code::kInvalidArgument) << status.ToString();
  return status.message();
}

TEST(Registration, PlacementsCutAsTorchDoes) {
  const auto box = [](uint32_t row, uint32_t column, std::vector<Placement> placements) {
    return OnlyBox(OnMesh({2, 3}, {row, column}, {PlacedShard("x", {7, 10}, std::move(placements))}));
  };
  EXPECT_EQ(box(1, 2, {Replicate{}, Replicate{}}), WholeOf({7, 10}));
  EXPECT_EQ(box(0, 1, {Cut{0}, Cut{1}}), (Box{{0, 4}, {4, 4}}));
  EXPECT_EQ(box(1, 2, {Cut{0}, Cut{1}}), (Box{{4, 8}, {3, 2}}));
  // Twice along one dimension: 7 rows are 4 and 3, and the 3 are 1, 1, 1.
  EXPECT_EQ(box(1, 2, {Cut{0}, Cut{0}}), (Box{{6, 0}, {1, 10}}));
  // 4 rows are 2, 2 and none.
  EXPECT_EQ(plan::ElementsOf(box(0, 2, {Cut{0}, Cut{0}})), 0);
}

TEST(Registration, TheRanksOfAMeshHoldEachElementOnce) {
  std::vector<int> holders(7 * 10);
  for (uint32_t i = 0; i < 6; ++i) {
    const Box box = OnlyBox(OnMesh({2, 3}, {i / 3, i % 3}, {PlacedShard("x", {7, 10}, {Cut{1}, Cut{0}})}));
    for (int64_t r = box.offset[0]; r < box.offset[0] + box.size[0]; ++r)
      for (int64_t c = box.offset[1]; c < box.offset[1] + box.size[1]; ++c)
        ++holders[static_cast<size_t>(r * 10 + c)];
  }
  EXPECT_THAT(holders, testing::Each(1));
}

TEST(Registration, BadMeshesAreRefused) {
  const auto whole = [] { return PlacedShard("x", {4, 4}, {Replicate{}}); };
  EXPECT_EQ(Refusal(OnMesh({2}, {1}, {whole()})), "");
  EXPECT_THAT(Refusal(OnMesh({}, {}, {whole()})), HasSubstr("mesh 0 has 0 dimensions"));
  EXPECT_THAT(Refusal(OnMesh({2}, {2}, {whole()})), HasSubstr("coordinate 2 in dimension 0 of mesh 0"));
  EXPECT_THAT(Refusal(OnMesh({2}, {1, 0}, {whole()})), HasSubstr("1 dimensions but 2 coordinates"));
  EXPECT_THAT(Refusal(OnMesh({0}, {0}, {whole()})), HasSubstr("mesh 0 has 0 ranks in its first 1"));
  EXPECT_THAT(Refusal(OnMesh({1U << 31, 1U << 31, 4}, {0, 0, 0}, {whole()})),
              HasSubstr("mesh 0 has 2147483648 ranks in its first 1 dimensions"));
  EXPECT_THAT(Refusal(OnMesh({1, 1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0, 0}, {whole()})),
              HasSubstr("7 dimensions; allowed: 1 to 6"));
  Registration nowhere = OnMesh({2}, {1}, {whole()});
  nowhere.coordinates.clear();
  EXPECT_THAT(Refusal(nowhere), HasSubstr("1 meshes but coordinates for 0"));
}

TEST(Registration, BadPlacementsAreRefused) {
  const auto refusal = [](std::vector<Placement> placements, uint32_t mesh = 0) {
    Shard shard = PlacedShard("a.b", {4, 4}, std::move(placements));
    std::get<Placed>(shard.part).mesh = mesh;
    return Refusal(OnMesh({2}, {1}, {shard}));
  };
  EXPECT_THAT(refusal({}), HasSubstr("a.b has 0 placements on a mesh of 1"));
  EXPECT_THAT(refusal({Cut{0}, Cut{1}}), HasSubstr("a.b has 2 placements"));
  EXPECT_THAT(refusal({Cut{2}}), HasSubstr("a.b of 2 dimensions is cut along dimension 2"));
  EXPECT_THAT(refusal({Cut{-1}}), HasSubstr("along dimension -1"));
  EXPECT_THAT(refusal({Cut{0}}, 1), HasSubstr("a.b is placed on mesh 1 of 1, counted from 0"));
}

TEST(Registration, MemoryThatContradictsItselfIsRefused) {
  Registration registration = Matrix();
  Memory& memory = registration.shards[0].memory;
  memory.kind = MemoryKind::kDevice;
  EXPECT_THAT(Refusal(registration), HasSubstr("a.b: device memory names device -1"));
  memory.device = 3;
  EXPECT_EQ(Refusal(registration), "") << "whether there is such a device, the driver knows";
  memory.kind = MemoryKind::kHost;
  EXPECT_THAT(Refusal(registration), HasSubstr("a.b: host memory names device 3"));
  memory.kind = static_cast<MemoryKind>(7);
  EXPECT_THAT(Refusal(registration), HasSubstr("unknown kind 7"));
}

TEST(Registration, ShardsOfATensorAreEqualOrDisjoint) {
  Registration registration = Matrix();
  registration.shards[0].part = Box{{0, 0}, {1, 4}};
  registration.shards.push_back(registration.shards[0]);
  registration.shards[1].part = Box{{2, 0}, {1, 4}};
  registration.shards.push_back(registration.shards[0]);
  EXPECT_EQ(Refusal(registration), "");
  const auto bytes = LayoutBytes(registration);
  std::reverse(registration.shards.begin(), registration.shards.end());
  EXPECT_EQ(*bytes, *LayoutBytes(registration)) << "whatever the order";
  registration.shards[0].part = Box{{0, 1}, {3, 1}};
  EXPECT_EQ(Refusal(registration),
            "tensor 'a.b': the boxes [0:1, 0:4] and [0:3, 1:2] of this rank overlap; give shards of one "
            "tensor that are equal or disjoint");
}

TEST(Registration, EveryByteOfAPartLiesInItsMemory) {
  const auto refusal = [](uint64_t offset, std::vector<int64_t> strides, size_t floats) {
    Registration registration = Matrix();
    registration.shards[0].offset = offset;
    registration.shards[0].strides = std::move(strides);
    registration.shards[0].memory = Floats(floats);
    return Refusal(registration);
  };
  EXPECT_EQ(refusal(0, {}, 12), "");
  EXPECT_EQ(refusal(8, {}, 14), "");
  EXPECT_EQ(refusal(0, {10, 1}, 24), "");
  EXPECT_EQ(refusal(8 * 4, {-4, 1}, 12), "");  // Rows from the last one on.
  for (const std::string& said :
       {refusal(0, {}, 11), refusal(4, {}, 12), refusal(0, {10, 1}, 23), refusal(7 * 4, {-4, 1}, 12),
        refusal(0, {kLargest, kLargest}, 1000), refusal(std::numeric_limits<uint64_t>::max(), {}, 12),
        refusal(40, {-kLargest - 1, 1}, 1000)})
    EXPECT_THAT(said, HasSubstr("tensor a.b: its 48 bytes from byte"));
  EXPECT_THAT(refusal(0, {1}, 12), HasSubstr("2 dimensions but 1 strides"));
}

TEST(Registration, WhatIsNotMovedNeedsNoMemory) {
  Registration registration = Matrix();
  registration.shards[0].memory = {};
  EXPECT_THAT(Refusal(registration), HasSubstr("a.b has no memory"));
  registration.shards[0].declared = true;
  EXPECT_EQ(Refusal(registration), "");
}

std::string EncodedBytesOf(const Registration& registration) {
  auto bytes = LayoutBytes(registration);
  EXPECT_TRUE(bytes.ok()) << bytes.status().ToString();
  return bytes.ok() ? *bytes : "";
}

Registration TwoTensors(uint32_t rank) {
  return OnMesh({4}, {rank}, {PlacedShard("x", {8, 4}, {Cut{0}}), PlacedShard("y", {6}, {Replicate{}})});
}

TEST(LayoutBytes, AreEqualAtTheRanksOfALayout) {
  const std::string first = EncodedBytesOf(TwoTensors(0));
  Registration last = TwoTensors(3);
  last.shards[0].memory = {.kind = MemoryKind::kDevice, .device = 1, .address = nullptr, .length = 5};
  EXPECT_EQ(EncodedBytesOf(last), first);
  std::swap(last.shards[0], last.shards[1]);
  EXPECT_EQ(EncodedBytesOf(last), first) << "in another order";
  last.shards[1].strides = {4, 1};
  EXPECT_EQ(EncodedBytesOf(last), first) << "with the strides that it has anyway";
}

TEST(LayoutBytes, DifferWhereTheLayoutDoes) {
  const std::string first = EncodedBytesOf(TwoTensors(0));
  const auto differs = [&](const auto& change) {
    Registration registration = TwoTensors(0);
    change(registration);
    EXPECT_NE(EncodedBytesOf(registration), first);
  };
  differs([](Registration& r) { r.shards[0].tensor.name = "z"; });
  differs([](Registration& r) { r.shards[0].tensor.dtype = DType::kI32; });
  differs([](Registration& r) { r.shards[0].tensor.shape[0] = 12; });
  differs([](Registration& r) { std::get<Placed>(r.shards[0].part).placements = {Cut{1}}; });
  differs([](Registration& r) { r.meshes[0].sizes[0] = 2; });
  differs([](Registration& r) { r.shards[0].part = Box{{0, 0}, {2, 4}}; });
  differs([](Registration& r) { r.shards[0].strides = {8, 1}; });
  differs([](Registration& r) { r.shards[0].offset = 4; });
  differs([](Registration& r) { r.shards[0].declared = true; });
  differs([](Registration& r) { r.shards.pop_back(); });
}

TEST(LayoutBytes, RefuseWhatRegisterRefuses) {
  EXPECT_EQ(LayoutBytes({}).status().code(), Code::kInvalidArgument);
  Registration twice = TwoTensors(0);
  twice.shards.push_back(twice.shards[0]);
  twice.shards.back().tensor.dtype = DType::kBF16;
  EXPECT_THAT(LayoutBytes(twice).status().message(), HasSubstr("'x' is F32"));
}

}  // namespace
}  // namespace weightcast::worker
