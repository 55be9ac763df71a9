#include <gtest/gtest.h>

#include "unit/digest/digest_cases.h"

namespace weightcast::digest::testing {
namespace {

constexpr uint64_t kCases = 1000;

TensorKey KeyOf(const Tensor& tensor) { return TensorKey::Of(tensor.info).value(); }

/// Both layouts of a case hold the tensor; what a fault leaves on one side must show. kCases times.
template <typename Fault>
void ExpectFound(uint64_t first_seed, int least_dims, Fault&& fault) {
  for (uint64_t seed = first_seed; seed < first_seed + kCases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random64 random(seed);
    const Tensor sent = RandomTensor(random, least_dims);
    const TensorKey key = KeyOf(sent);
    const TensorDigest expected = SumOf(key, RandomLayout(random, sent));
    ASSERT_NE(fault(random, sent, key), expected);
  }
}

/// Exchanges slices `a` and `b` of the tensor's first dimension.
void SwapSlices(Tensor& tensor, int64_t a, int64_t b) {
  const size_t bytes = tensor.bytes.size() / static_cast<size_t>(tensor.info.shape[0]);
  std::byte* const data = tensor.bytes.data();
  std::swap_ranges(data + static_cast<size_t>(a) * bytes, data + static_cast<size_t>(a + 1) * bytes,
                   data + static_cast<size_t>(b) * bytes);
}

TEST(DigestProperty, LayoutsOfOneTensorAgree) {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random64 random(seed);
    const Tensor tensor = RandomTensor(random);
    const TensorKey key = KeyOf(tensor);
    const std::vector<Shard> trainers = RandomLayout(random, tensor);
    const std::vector<Shard> engine = RandomLayout(random, tensor);
    ASSERT_EQ(SumOf(key, trainers), SumOf(key, engine));
    ASSERT_EQ(SumOf(key, trainers), key.DigestOf(WholeOf(tensor.info.shape), tensor.bytes.data()).value());
    // A replica has other strides and another address, and the same digest.
    for (const Shard& shard : engine)
      ASSERT_EQ(DigestOf(key, shard), DigestOf(key, HoldShard(random, tensor, shard.box)));
  }
}

TEST(DigestProperty, PiecesAddUpToTheBox) {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random64 random(seed);
    const Tensor tensor = RandomTensor(random);
    const TensorKey key = KeyOf(tensor);
    for (const Box& box : RandomCuts(random, WholeOf(tensor.info.shape), 3)) {
      const Shard dense = HoldShard(random, tensor, box, 0);
      // Cut anywhere, also inside an element; the later half first.
      const std::span<const std::byte> bytes = std::span(dense.data).subspan(dense.first);
      const auto cut = static_cast<size_t>(random.Pick(0, static_cast<int64_t>(bytes.size())));
      DigestSum sum(key);
      ASSERT_TRUE(sum.AddPiece(box, static_cast<int64_t>(cut), bytes.subspan(cut)).ok());
      ASSERT_TRUE(sum.AddPiece(box, 0, bytes.first(cut)).ok());
      ASSERT_EQ(sum.digest(), DigestOf(key, dense));
    }
  }
}

TEST(DigestProperty, OneFlippedBitIsFound) {
  ExpectFound(10000, 0, [](Random64& random, Tensor changed, const TensorKey& key) {
    const auto at = static_cast<size_t>(random.Pick(0, static_cast<int64_t>(changed.bytes.size()) - 1));
    changed.bytes[at] ^= static_cast<std::byte>(1 << random.Pick(0, 7));
    return SumOf(key, RandomLayout(random, changed));
  });
}

TEST(DigestProperty, TwoSwappedTensorsAreFound) {
  ExpectFound(20000, 0, [](Random64& random, const Tensor& sent, const TensorKey& key) {
    Tensor other = sent;
    other.info.name += "2";
    other.bytes = random.Bytes(static_cast<int64_t>(sent.bytes.size()));
    const TensorKey other_key = KeyOf(other);
    const std::vector<Shard> mine = RandomLayout(random, sent);
    const std::vector<Shard> others = RandomLayout(random, other);
    const TensorDigest other_digest = SumOf(other_key, others);
    // Neither tensor passes for the other, equal tensors differ by name, and both together are not what they
    // were.
    EXPECT_NE(other_digest, SumOf(other_key, mine));
    EXPECT_NE(SumOf(key, mine), SumOf(other_key, mine));
    EXPECT_NE(SumOf(key, mine) + other_digest, SumOf(key, others) + SumOf(other_key, mine));
    return SumOf(key, RandomLayout(random, other));
  });
}

TEST(DigestProperty, TwoSwappedRowsAreFound) {
  ExpectFound(30000, 1, [](Random64& random, Tensor changed, const TensorKey& key) {
    const int64_t rows = changed.info.shape[0];
    const int64_t row = random.Pick(0, rows - 1);
    const int64_t other = (row + random.Pick(1, rows - 1)) % rows;
    const Tensor before = changed;
    SwapSlices(changed, row, other);
    // Rows of one byte may be equal: then there is nothing to find but this.
    if (changed.bytes == before.bytes) changed.bytes[0] ^= std::byte{1};
    return SumOf(key, RandomLayout(random, changed));
  });
}

TEST(DigestProperty, OneStaleRowIsFound) {
  ExpectFound(40000, 1, [](Random64& random, Tensor changed, const TensorKey& key) {
    const auto rows = changed.info.shape[0];
    const auto bytes = static_cast<int64_t>(changed.bytes.size()) / rows;
    const std::span<std::byte> row =
        std::span(changed.bytes)
            .subspan(static_cast<size_t>(random.Pick(0, rows - 1) * bytes), static_cast<size_t>(bytes));
    // A step of the optimizer changes some low bits.
    for (std::byte& byte : row)
      if (random.Chance(0.3)) byte ^= static_cast<std::byte>(random.Pick(1, 3));
    row.front() ^= std::byte{4};
    return SumOf(key, RandomLayout(random, changed));
  });
}

TEST(DigestProperty, OneMissingBoxIsFound) {
  uint64_t zeros = 0;
  ExpectFound(50000, 0, [&](Random64& random, const Tensor& sent, const TensorKey& key) {
    std::vector<Shard> shards = RandomLayout(random, sent);
    std::erase_if(shards, [](const Shard& shard) { return Volume(shard.box.size) == 0; });
    std::vector<Shard> fewer(shards.begin() + 1, shards.end());
    // Nor does a box of nothing but zeros go unnoticed.
    Tensor zero = sent;
    std::fill(zero.bytes.begin(), zero.bytes.end(), std::byte{0});
    TensorDigest all;
    TensorDigest some;
    for (const Shard& shard : shards) all += DigestOf(key, HoldShard(random, zero, shard.box));
    for (const Shard& shard : fewer) some += DigestOf(key, HoldShard(random, zero, shard.box));
    zeros += all != some ? 1 : 0;
    return SumOf(key, fewer);
  });
  EXPECT_EQ(zeros, kCases);
}

TEST(DigestProperty, OneBoxHeldTwiceIsFound) {
  ExpectFound(60000, 0, [](Random64& random, const Tensor& sent, const TensorKey& key) {
    std::vector<Shard> shards = RandomLayout(random, sent);
    std::erase_if(shards, [](const Shard& shard) { return Volume(shard.box.size) == 0; });
    return SumOf(key, shards) + DigestOf(key, shards.back());
  });
}

}  // namespace
}  // namespace weightcast::digest::testing
