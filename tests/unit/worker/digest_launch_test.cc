// What the kernel gives for boxes in memory is the digest that the processor gives, run by its host version.
#include "worker/digest_launch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "kernels/host_kernels.h"
#include "unit/digest/digest_cases.h"

namespace weightcast::worker {
namespace {

using digest::TensorKey;
using digest::testing::Random64;

TensorDigest DigestOnHost(kernels::DigestParameters p) {
  kernels::DigestSums sums{};
  p.sums = reinterpret_cast<uint64_t>(&sums);
  void* parameter = &p;
  kernels::FindHostKernel("digest")->run({1, 32}, &parameter);
  digest::KeyedSums keyed{};
  for (size_t i = 0; i < kernels::kDigestTerms; ++i)
    keyed[i / 6][i % 6] = digest::ToField((digest::UInt128{sums.term[i].high} << 32) + sums.term[i].low);
  return digest::DigestOf(keyed);
}

/// A GPU ends the context at an access that is not aligned; the host does not mind.
void ExpectAligned(const kernels::DigestParameters& p) {
  if (p.shift == 0) {
    EXPECT_EQ((p.source - p.place) % p.unit, 0U);
  } else {
    EXPECT_EQ(p.unit, 1U << p.shift);
    EXPECT_EQ(p.source % p.unit, 0U);
    EXPECT_EQ(p.apart % static_cast<int64_t>(p.unit), 0);
  }
  for (int d = 0; d < kernels::kBoxDims; ++d) {
    EXPECT_EQ((p.stride[d] - p.step[d]) % static_cast<int64_t>(p.unit), 0);
    EXPECT_TRUE(d >= kernels::kBoxDims - static_cast<int>(p.dims) || p.size[d] == 1);
  }
}

DigestSource SourceOf(const digest::testing::Shard& shard, DType dtype) {
  GatherSource memory{.data = shard.data.data() + shard.first,
                      .dtype = dtype,
                      .shard = shard.box,
                      .strides = shard.strides,
                      .box = shard.box};
  if (memory.strides.empty()) memory.strides = DenseStrides(shard.box.size);
  return {.memory = memory, .place = shard.box.offset, .count = ElementsOf(shard.box.size)};
}

/// The digest of elements of the box: gathered, and added as the processor adds them.
TensorDigest Expected(const TensorKey& key, const DigestSource& source) {
  const DType dtype = source.memory.dtype;
  std::vector<std::byte> dense(static_cast<size_t>(BytesOf(dtype, source.count)));
  Gather(source.memory, source.first, source.count, dtype, dense.data());
  digest::DigestSum sum(key);
  const Box box{.offset = source.place, .size = source.memory.box.size};
  EXPECT_TRUE(sum.AddPiece(box, BytesOf(dtype, source.first), dense).ok());
  return sum.digest();
}

/// Smaller ones inside of it, and elements from anywhere on.
void Narrow(Random64& random, DigestSource& source) {
  for (size_t d = 0; d < source.place.size(); ++d) {
    const int64_t offset = random.Chance(0.5) ? 0 : random.Pick(0, source.memory.box.size[d] - 1);
    source.memory.box.offset[d] += offset;
    source.place[d] += offset;
    source.memory.box.size[d] = random.Chance(0.5) ? source.memory.box.size[d] - offset
                                                   : random.Pick(1, source.memory.box.size[d] - offset);
  }
  const int64_t all = ElementsOf(source.memory.box.size);
  source.first = random.Pick(0, all - 1);
  source.count = random.Pick(1, all - source.first);
}

TEST(DigestLaunch, GivesTheDigestOfRandomLayouts) {
  Random64 random(21);
  std::set<uint32_t> units;
  int refused = 0;
  int parts = 0;
  for (int round = 0; round < 1500; ++round) {
    const auto tensor = digest::testing::RandomTensor(random);
    const auto key = TensorKey::Of(tensor.info).value();
    TensorDigest sum;
    for (const auto& shard : digest::testing::RandomLayout(random, tensor)) {
      if (ElementsOf(shard.box.size) == 0) continue;
      DigestSource source = SourceOf(shard, tensor.info.dtype);
      for (const bool narrow : {false, true}) {
        if (narrow) Narrow(random, source);
        const auto launch = DigestLaunch(key, source);
        ++parts;
        if (!launch) {
          ++refused;
          if (!narrow) sum += Expected(key, source);
          continue;
        }
        ExpectAligned(*launch);
        units.insert(launch->unit);
        const TensorDigest digest = DigestOnHost(*launch);
        ASSERT_EQ(digest, Expected(key, source)) << "round " << round;
        if (!narrow) sum += digest;
      }
    }
    ASSERT_EQ(sum, key.DigestOf(WholeOf(tensor.info.shape), tensor.bytes.data()).value());
  }
  EXPECT_EQ(units, (std::set<uint32_t>{1, 2, 4, 8, 16}));
  EXPECT_LT(refused, parts / 4) << "only elements that are apart, at addresses that do not fit them";
}

/// Blocks that are whole, rows of many blocks, and what crosses them.
TEST(DigestLaunch, GivesTheDigestOfLongRows) {
  Random64 random(5);
  constexpr int64_t kRowLength = 3 * 8192;
  digest::testing::Tensor tensor{.info = {"w", DType::kBF16, {9, kRowLength}},
                                 .bytes = random.Bytes(9 * kRowLength * 2)};
  const auto key = TensorKey::Of(tensor.info).value();
  for (int round = 0; round < 60; ++round) {
    Box box{{random.Pick(0, 3), 0}, {random.Pick(1, 5), kRowLength}};
    if (random.Chance(0.7)) {
      box.offset[1] = random.Pick(0, kRowLength - 1);
      box.size[1] = random.Pick(1, kRowLength - box.offset[1]);
    }
    const auto shard = digest::testing::HoldShard(random, tensor, box, 0);
    DigestSource source = SourceOf(shard, DType::kBF16);
    if (round % 3 == 0) Narrow(random, source);
    const auto launch = DigestLaunch(key, source);
    ASSERT_TRUE(launch);
    ASSERT_EQ(DigestOnHost(*launch), Expected(key, source)) << "round " << round;
  }
}

TEST(DigestLaunch, OfEveryDType) {
  Random64 random(8);
  for (int i = static_cast<int>(DType::kBool); i <= static_cast<int>(DType::kU64); ++i) {
    const auto dtype = static_cast<DType>(i);
    const Shape shape = {6, 8, 4};
    const TensorInfo info{"t", dtype, shape};
    const auto key = TensorKey::Of(info).value();
    const auto bytes = random.Bytes(BytesOf(dtype, ElementsOf(shape)));
    const Box box{{1, 0, 0}, {3, 8, 4}};
    const DigestSource source{.memory = {.data = bytes.data(),
                                         .dtype = dtype,
                                         .shard = WholeOf(shape),
                                         .strides = DenseStrides(shape),
                                         .box = box},
                              .place = box.offset,
                              .count = ElementsOf(box.size)};
    const auto launch = DigestLaunch(key, source);
    ASSERT_TRUE(launch) << NameOf(dtype);
    EXPECT_EQ(DigestOnHost(*launch), Expected(key, source)) << NameOf(dtype);
  }
}

TEST(DigestLaunch, LeavesToTheHostWhatItCannotRead) {
  const auto launches = [](DType dtype, const Shape& shape, std::vector<int64_t> strides, uint64_t address) {
    const auto key = TensorKey::Of({"t", dtype, shape}).value();
    const DigestSource source{.memory = {.data = reinterpret_cast<const std::byte*>(address),
                                         .dtype = dtype,
                                         .shard = WholeOf(shape),
                                         .strides = std::move(strides),
                                         .box = WholeOf(shape)},
                              .place = Shape(shape.size(), 0),
                              .count = ElementsOf(shape)};
    return DigestLaunch(key, source).has_value();
  };
  EXPECT_TRUE(launches(DType::kF4, {2, 8}, {8, 1}, 64));
  EXPECT_FALSE(launches(DType::kF4, {3, 3}, {3, 1}, 64)) << "ends inside a byte";
  EXPECT_FALSE(launches(DType::kF4, {8, 2}, {1, 8}, 64)) << "elements below a byte that are apart";
  EXPECT_TRUE(launches(DType::kF32, {8, 2}, {2, 1}, 65)) << "a row";
  EXPECT_TRUE(launches(DType::kF32, {8, 2}, {1, 8}, 64));
  EXPECT_FALSE(launches(DType::kF32, {8, 2}, {1, 8}, 66)) << "elements that are not at multiples of 4";
  Shape eight(8, 2);
  auto strides = DenseStrides(eight);
  std::ranges::reverse(strides);
  EXPECT_TRUE(launches(DType::kU8, eight, strides, 64));
}

}  // namespace
}  // namespace weightcast::worker
