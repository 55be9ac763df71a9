#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/digest/digest_cases.h"
#include "weightcast/digest.h"

// From the digests of ranks to those of whole tensors.
namespace weightcast::digest::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class Combine : public ::testing::Test {
 protected:
  /// What a rank says of a box of `tensor_`.
  [[nodiscard]] ShardDigest Of(const Box& box) {
    const TensorKey key = TensorKey::Of(tensor_.info).value();
    return {.tensor = tensor_.info, .box = box, .digest = DigestOf(key, HoldShard(random_, tensor_, box))};
  }
  [[nodiscard]] ShardDigest Rows(int64_t first, int64_t count) { return Of({{first, 0}, {count, 6}}); }
  [[nodiscard]] static Status ErrorOf(const std::vector<Digests>& ranks) {
    return CombineDigests(ranks).status();
  }

  Random64 random_{1};
  Tensor tensor_{.info = {.name = "w", .dtype = DType::kBF16, .shape = {8, 6}}, .bytes = random_.Bytes(96)};
};

TEST_F(Combine, RowsAndColumnsGiveTheDigestOfTheWhole) {
  const std::vector<Digests> rows = {{Rows(0, 3)}, {Rows(3, 5), Rows(8, 0)}};
  const std::vector<Digests> columns = {{Of({{0, 0}, {8, 5}})}, {Of({{0, 5}, {8, 1}})}};
  const auto whole = TensorKey::Of(tensor_.info)->DigestOf(WholeOf({8, 6}), tensor_.bytes.data()).value();
  EXPECT_THAT(CombineDigests(rows).value(), ElementsAre(Pair("w", whole)));
  EXPECT_EQ(CombineDigests(columns).value(), CombineDigests(rows).value());
}

TEST_F(Combine, ReplicasCountOnce) {
  // Rank 1 has the lower rows twice, as rank 2 has them, too.
  const std::vector<Digests> ranks = {{Rows(0, 4)}, {Rows(4, 4), Rows(4, 4)}, {Rows(4, 4)}};
  EXPECT_EQ(CombineDigests(ranks).value(), CombineDigests(std::vector<Digests>{{Rows(0, 8)}}).value());
}

TEST_F(Combine, ReplicasThatDifferAreNamed) {
  std::vector<Digests> ranks = {{Rows(0, 4)}, {Rows(4, 4)}};
  tensor_.bytes[90] ^= std::byte{1};
  ranks.push_back({Rows(0, 4), Rows(4, 4)});
  EXPECT_EQ(ErrorOf(ranks).code(), Code::kCorrupt);
  EXPECT_THAT(ErrorOf(ranks).message(), AllOf(HasSubstr("tensor 'w': the box [4:8, 0:6]"),
                                              HasSubstr("at rank 1 and"), HasSubstr("at rank 2")));
}

TEST_F(Combine, MissingAndOverlappingBoxesAreNamed) {
  const Status missing = ErrorOf({{Rows(0, 4)}, {Rows(6, 2)}});
  EXPECT_EQ(missing.code(), Code::kInvalidArgument);
  EXPECT_THAT(missing.message(), AllOf(HasSubstr("'w'"), HasSubstr("no rank holds the box [4:6, 0:6]")));
  EXPECT_THAT(ErrorOf({{Rows(0, 0)}}).message(), HasSubstr("'w' [8, 6]: no rank holds any of it"));
  const Status overlap = ErrorOf({{Rows(0, 5)}, {Rows(4, 4)}});
  EXPECT_EQ(overlap.code(), Code::kInvalidArgument);
  EXPECT_THAT(overlap.message(), AllOf(HasSubstr("[0:5, 0:6] of rank 0"), HasSubstr("[4:8, 0:6] of rank 1")));
}

TEST_F(Combine, RanksThatDisagreeAboutTheTensorAreNamed) {
  std::vector<Digests> ranks = {{Rows(0, 4)}, {Rows(4, 4)}};
  ranks[1][0].tensor.dtype = DType::kF16;
  EXPECT_THAT(ErrorOf(ranks).message(), HasSubstr("'w' is BF16 [8, 6] at rank 0 and F16 [8, 6] at rank 1"));
  ranks[1][0].tensor = {.name = "w", .dtype = DType::kBF16, .shape = {8, 7}};
  EXPECT_EQ(ErrorOf(ranks).code(), Code::kInvalidArgument);
}

TEST_F(Combine, RefusesWhatNoRankCanHold) {
  ShardDigest shard = Rows(0, 8);
  shard.box.size = {9, 6};
  EXPECT_EQ(ErrorOf({{shard}}).code(), Code::kInvalidArgument);
  shard.tensor.shape = {-1, 6};
  EXPECT_EQ(ErrorOf({{shard}}).code(), Code::kInvalidArgument);
  EXPECT_TRUE(CombineDigests({})->empty());
}

TEST_F(Combine, ScalarsAndEmptyTensorsCombine) {
  tensor_.info = {.name = "scale", .dtype = DType::kF32, .shape = {}};
  const ShardDigest scale = Of({});
  tensor_.info = {.name = "none", .dtype = DType::kF32, .shape = {0, 4}};
  const ShardDigest none = Of({{0, 0}, {0, 4}});
  EXPECT_THAT(CombineDigests(std::vector<Digests>{{scale, none}, {scale}}).value(),
              ElementsAre(Pair("none", TensorDigest{}), Pair("scale", scale.digest)));
}

TEST(TensorDigest, ReadsWhatItWrites) {
  const TensorDigest digest{.high = 0x123456789abcdef, .low = 7};
  EXPECT_EQ(digest.ToString(), "0123456789abcdef0000000000000007");
  EXPECT_EQ(TensorDigest::FromString(digest.ToString()).value(), digest);
  for (const char* text : {"", "12", "0123456789abcdef000000000000000g", "0123456789abcdef 000000000000007",
                           "1fffffffffffffff0000000000000000", "0123456789abcdef00000000000000070"})
    EXPECT_EQ(TensorDigest::FromString(text).status().code(), Code::kInvalidArgument) << text;
}

}  // namespace
}  // namespace weightcast::digest::testing
