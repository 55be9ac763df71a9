#include "digest/digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "digest/constants.h"
#include "unit/digest/digest_cases.h"

namespace weightcast::digest::testing {
namespace {

using ::testing::HasSubstr;

TensorKey KeyOf(DType dtype, Shape shape, std::string name = "w") {
  return TensorKey::Of({.name = std::move(name), .dtype = dtype, .shape = std::move(shape)}).value();
}

std::vector<std::byte> Counting(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(Random(7, i));
  return bytes;
}

TEST(Digest, IsTheSameInEveryRelease) {
  // From the reference in tests/python/digest_reference.py.
  const auto bytes = Counting(20000);
  EXPECT_EQ(KeyOf(DType::kBF16, {100, 100}).DigestOf({{0, 0}, {100, 100}}, bytes.data())->ToString(),
            "1b50a34016565b3b155f1799ad309e8c");
  EXPECT_EQ(KeyOf(DType::kU8, {20000}, "b").DigestOf({{777}, {19001}}, bytes.data())->ToString(),
            "0f068c023bd607ef036aad75d2ea618f");
  EXPECT_EQ(KeyOf(DType::kF64, {}).DigestOf({}, bytes.data())->ToString(),
            "1890b6691eeabae40ec851d41d35fbe0");
}

TEST(Digest, DependsOnNameDtypeAndShape) {
  const auto bytes = Counting(64);
  std::set<std::string> digests;
  for (const TensorKey& key : {KeyOf(DType::kBF16, {4, 8}), KeyOf(DType::kF16, {4, 8}),
                               KeyOf(DType::kBF16, {8, 4}), KeyOf(DType::kBF16, {4, 8}, "v")})
    digests.insert(key.DigestOf(WholeOf(key.tensor().shape), bytes.data())->ToString());
  EXPECT_EQ(digests.size(), 4u);
}

TEST(Digest, OfNothingIsZero) {
  const TensorKey key = KeyOf(DType::kF32, {4, 0});
  EXPECT_EQ(key.DigestOf({{0, 0}, {4, 0}}, nullptr).value(), TensorDigest{});
  EXPECT_EQ(
      KeyOf(DType::kF32, {4, 8}).DigestOf({{2, 3}, {0, 5}}, nullptr, std::vector<int64_t>{1, 4}).value(),
      TensorDigest{});
}

TEST(Digest, OfZerosIsNotZero) {
  const std::vector<std::byte> zeros(4096);
  EXPECT_NE(KeyOf(DType::kF32, {1024}).DigestOf({{0}, {1024}}, zeros.data()).value(), TensorDigest{});
}

TEST(Digest, CutsTensorsBelowOneByteAtWholeBytes) {
  const auto bytes = Counting(1000);
  const TensorKey key = KeyOf(DType::kF4, {10, 32});
  const auto half = [&](int64_t column) {  // Rows of 16 bytes, of which 8.
    std::vector<std::byte> dense;
    for (int64_t row = 0; row < 10; ++row) {
      const std::byte* from = bytes.data() + row * 16 + column / 2;
      dense.insert(dense.end(), from, from + 8);
    }
    return key.DigestOf({{0, column}, {10, 16}}, dense.data()).value();
  };
  EXPECT_EQ(half(0) + half(16), key.DigestOf(WholeOf({10, 32}), bytes.data()).value());
  const auto inside = key.DigestOf({{0, 1}, {10, 16}}, bytes.data());
  EXPECT_EQ(inside.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(inside.status().message(), HasSubstr("inside a byte"));
  EXPECT_EQ(key.DigestOf({{0, 0}, {10, 16}}, bytes.data(), std::vector<int64_t>{32, 1}).status().code(),
            Code::kInvalidArgument);
  // All of a tensor may end inside a byte; so it does for 6 bits.
  EXPECT_TRUE(KeyOf(DType::kF4, {3, 3}).DigestOf(WholeOf({3, 3}), bytes.data()).ok());
  EXPECT_TRUE(KeyOf(DType::kF6E2M3, {4, 4}).DigestOf({{1, 0}, {2, 4}}, bytes.data()).ok());
}

TEST(Digest, RefusesWhatLeavesTheTensor) {
  const auto bytes = Counting(1000);
  const TensorKey key = KeyOf(DType::kI16, {4, 8});
  DigestSum sum(key);
  EXPECT_EQ(sum.AddPiece(WholeOf({4, 8}), 60, {bytes.data(), 5}).code(), Code::kOutOfBounds);
  EXPECT_EQ(sum.AddPiece(WholeOf({4, 8}), -1, {bytes.data(), 1}).code(), Code::kOutOfBounds);
  EXPECT_EQ(sum.AddPiece(WholeOf({4, 8}), 65, {}).code(), Code::kOutOfBounds);
  EXPECT_EQ(sum.AddPiece({{0, 0}, {2, 4}}, 12, {bytes.data(), 5}).code(), Code::kOutOfBounds);
  EXPECT_EQ(sum.AddBox({{3, 0}, {2, 4}}, bytes.data()).code(), Code::kInvalidArgument);
  EXPECT_EQ(sum.AddBox({{0, 0}, {2, 4}}, bytes.data(), std::vector<int64_t>{4}).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(sum.digest(), TensorDigest{});
  EXPECT_FALSE(TensorKey::Of({.name = "", .dtype = DType::kU8, .shape = {1}}).ok());
}

/// Experts of whole blocks: only the blocks' keys tell them apart.
TEST(Digest, SwappedBlocksAreFound) {
  constexpr int64_t kExperts = 8;
  const TensorKey key = KeyOf(DType::kBF16, {kExperts, 2, int64_t{kBlockLanes}});
  constexpr size_t kBytes = 2 * kBlockBytes;  // Of an expert.
  const auto bytes = Counting(kExperts * kBytes);
  const auto digest = [&](const std::vector<std::byte>& of) {
    return key.DigestOf(WholeOf(key.tensor().shape), of.data()).value();
  };
  for (size_t a = 0; a < kExperts; ++a) {
    for (size_t b = 0; b < a; ++b) {
      auto swapped = bytes;
      std::swap_ranges(&swapped[a * kBytes], &swapped[a * kBytes] + kBytes, &swapped[b * kBytes]);
      EXPECT_NE(digest(swapped), digest(bytes));
    }
  }
}

TEST(Digest, SumsOfManyCopiesStayExact) {
  const std::vector<std::byte> lowest(kBlockBytes, std::byte{0x80});  // Lanes of -32640.
  const TensorKey key = KeyOf(DType::kU8, {int64_t{kBlockBytes}});
  DigestSum sum(key);
  TensorDigest expected;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(sum.AddPiece(WholeOf(key.tensor().shape), 0, lowest).ok());
    expected += key.DigestOf(WholeOf(key.tensor().shape), lowest.data()).value();
  }
  EXPECT_EQ(sum.digest(), expected);
}

TEST(Digest, FastAndPortableDotsAgree) {
  Random64 random(1);
  for (int i = 0; i < 3000; ++i) {
    SCOPED_TRACE(i);
    const auto first = static_cast<size_t>(random.Pick(0, int64_t{kBlockLanes}));
    const auto lanes = static_cast<size_t>(
        random.Chance(0.5) ? random.Pick(0, int64_t(kBlockLanes - first))
                           : random.Pick(0, std::min<int64_t>(300, int64_t(kBlockLanes - first))));
    auto bytes = random.Bytes(static_cast<int64_t>(lanes) * 2 + 3);
    if (random.Chance(0.2)) std::fill(bytes.begin(), bytes.end(), std::byte{0x80});
    const Dots before{1, 2, 3, 4, 5};
    Dots portable = before;
    AddDotsPortable(bytes.data() + i % 4, first, lanes, portable);
    for (const DotsFunction add : AllAddDots()) {
      Dots fast = before;
      add(bytes.data() + i % 4, first, lanes, fast);
      ASSERT_EQ(fast, portable);
    }
  }
}

/// The extremes: each lane the lowest of its kind, with the sign that makes all products positive, or
/// negative.
TEST(Digest, DotsDoNotOverflow) {
  const Table table = MakeTable();
  for (const int sign : {1, -1}) {
    for (size_t dot = 0; dot < kDots; ++dot) {
      std::vector<int16_t> lanes(kBlockLanes);
      int64_t expected = 0;
      for (size_t i = 0; i < kBlockLanes; ++i) {
        const int factor = table[i + dot * kTableStep];
        lanes[i] = static_cast<int16_t>(factor * sign > 0 ? 32767 : -32768);
        expected += int64_t{factor} * lanes[i];
      }
      for (const DotsFunction add : AllAddDots()) {
        Dots dots{};
        add(reinterpret_cast<const std::byte*>(lanes.data()), 0, kBlockLanes, dots);
        EXPECT_EQ(dots[dot], expected);
      }
    }
  }
}

/// What makes one changed lane, or two that are swapped, certain to be found: factors that differ and are not
/// zero.
TEST(Digest, LanesOfABlockHaveFactorsOfTheirOwn) {
  const Table table = MakeTable();
  for (const auto& factors : kFactors) {
    std::set<uint64_t> seen = {0};
    for (size_t lane = 0; lane < kBlockLanes; ++lane) {
      Int128 sum = 0;
      for (size_t dot = 0; dot < kDots; ++dot)
        sum += Int128{table[lane + dot * kTableStep]} * static_cast<int64_t>(factors[dot]);
      EXPECT_TRUE(seen.insert(SignedToField(sum)).second) << lane;
    }
  }
}

TEST(Field, IsThatOfThePrime) {
  EXPECT_EQ(AddInField(kPrime - 1, 1), 0u);
  EXPECT_EQ(ToField(kPrime), 0u);
  EXPECT_EQ(ToField(UInt128{1} << 61), 1u);
  EXPECT_EQ(ToField(UInt128{1} << 122), 1u);
  EXPECT_EQ(SignedToField(-1), kPrime - 1);
  EXPECT_EQ(SignedToField(0), 0u);
  EXPECT_EQ(SignedToField(-(Int128{1} << 122)), kPrime - 1);
  EXPECT_EQ(MultiplyInField(kPrime - 1, kPrime - 1), 1u);
}

}  // namespace
}  // namespace weightcast::digest::testing
