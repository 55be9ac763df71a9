#include "plan/table_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/varint.h"
#include "plan/layout_builder.h"
#include "plan/models.h"
#include "plan/planner.h"
#include "plan/table_layout.h"

namespace weightcast::plan {
namespace {

using ::testing::HasSubstr;

/// The table of trainer 1 of a small plan that has every feature: shards, a cast, several peers.
std::string Sample(RankTable::Role role = RankTable::Role::kTrainer) {
  const std::vector<TensorInfo> theirs{
      {"w", DType::kF32, {6, 4}}, {"s", DType::kI64, {}}, {"b", DType::kU8, {6}}};
  const std::vector<TensorInfo> ours{
      {"w", DType::kBF16, {6, 4}}, {"s", DType::kI64, {}}, {"b", DType::kU8, {6}}};
  const Layout trainers = *FsdpLayout(theirs, 2);
  const Layout inference = *DdpLayout(ours, 3);
  const NameRules rules;
  const Plan plan = std::move(*MakePlan({trainers, inference, rules}));
  return *TableEncoder(trainers, inference, plan.table).Encode(role, 1, 42);
}

/// The table of inference rank 0, or of the trainer, of a plan in which that rank holds boxes of a tensor in
/// two places, one of them twice, and a scalar twice.
std::string SampleOfSeveral(RankTable::Role role) {
  const TensorInfo w{"w", DType::kBF16, {6, 4}};
  const TensorInfo s{"s", DType::kI64, {}};
  LayoutBuilder builder(2);
  EXPECT_TRUE(
      builder
          .AddRank(0,
                   {{{w, {{4, 0}, {2, 4}}}, {s, {}}, {w, {{0, 0}, {2, 4}}}, {w, {{4, 0}, {2, 4}}}, {s, {}}}})
          .ok());
  EXPECT_TRUE(builder.AddRank(1, {{{w, {{2, 0}, {2, 4}}}}}).ok());
  const Layout inference = *builder.Build();
  const Layout trainers = *DdpLayout(std::vector<TensorInfo>{w, s}, 1);
  const NameRules rules;
  const Plan plan = std::move(*MakePlan({trainers, inference, rules}));
  return *TableEncoder(trainers, inference, plan.table).Encode(role, 0, 42);
}

/// The same bytes under a checksum that fits them, so that the parser behind it is reached.
std::string WithChecksum(std::string bytes) {
  if (bytes.size() < kTableHeaderBytes) return bytes;
  ByteWriter checksum;
  checksum.Put(Hash64(std::string_view(bytes).substr(kTableHeaderBytes)));
  checksum.bytes().copy(bytes.data() + kTableHeaderBytes - 8, 8);
  return bytes;
}

TEST(TableFormatTest, SaysWhatATrainerNeeds) {
  const auto table = DecodeRankTable(Sample());
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ(table->role, RankTable::Role::kTrainer);
  EXPECT_EQ(table->rank, 1);
  EXPECT_EQ(table->epoch, 42U);
  EXPECT_EQ(table->source_ranks, 2);
  EXPECT_EQ(table->destination_ranks, 3);
  EXPECT_EQ(table->peers, (std::vector<int>{0, 1, 2}));
  ASSERT_EQ(table->routes.size(), 6U);
  const RankTable::Route& first = table->routes[0];
  EXPECT_EQ(first.peer, 1);  // Trainer 1 begins with inference rank 1.
  EXPECT_EQ(first.src_box, (Box{{3, 0}, {3, 4}}));
  EXPECT_EQ(first.dst_offset, (Shape{3, 0}));
  EXPECT_EQ(first.transform, Transform::kCast);
  EXPECT_EQ(table->source_tensors[0].dtype, DType::kF32);
  EXPECT_EQ(table->destination_tensors[0].dtype, DType::kBF16);
  EXPECT_EQ(table->destination_shards[first.dst_shard].box, WholeOf({6, 4}));
}

TEST(TableFormatTest, TellsTheShardsOfATensorAndTheirCopiesApart) {
  for (const auto role : {RankTable::Role::kTrainer, RankTable::Role::kInference}) {
    const auto table = DecodeRankTable(SampleOfSeveral(role));
    ASSERT_TRUE(table.ok()) << table.status().ToString();
    std::multiset<std::string> filled;
    for (const RankTable::Route& route : table->routes) {
      const RankTable::Shard& shard = table->destination_shards[route.dst_shard];
      if (shard.rank != 0) continue;
      EXPECT_EQ(route.dst_offset, shard.box.offset);
      filled.insert(table->destination_tensors[static_cast<size_t>(shard.tensor)].name + ToString(shard.box) +
                    " copy " + std::to_string(shard.copy));
    }
    EXPECT_EQ(filled, (std::multiset<std::string>{"w[0:2, 0:4] copy 0", "w[4:6, 0:4] copy 0",
                                                  "w[4:6, 0:4] copy 1", "s[] copy 0", "s[] copy 1"}));
  }
}

TEST(TableFormatTest, RanksThatThePlanDoesNotHaveAreRefused) {
  const std::vector<TensorInfo> tensors{{"w", DType::kF32, {6, 4}}};
  const Layout two = *DdpLayout(tensors, 2);
  const Layout three = *DdpLayout(tensors, 3);
  const NameRules rules;
  const Plan plan = std::move(*MakePlan({two, three, rules}));
  const auto code = [&](RankTable::Role role, int rank) {
    return TableEncoder(two, three, plan.table).Encode(role, rank, 1).status().code();
  };
  EXPECT_EQ(code(RankTable::Role::kTrainer, 1), Code::kOk);
  EXPECT_EQ(code(RankTable::Role::kTrainer, 2), Code::kInvalidArgument);
  EXPECT_EQ(code(RankTable::Role::kInference, 2), Code::kOk);
  EXPECT_EQ(code(RankTable::Role::kInference, -1), Code::kInvalidArgument);
}

TEST(TableFormatTest, OtherVersionsAndWrongChecksumsAreToldApart) {
  std::string version = Sample();
  version[kTableMagic.size()] = 2;
  EXPECT_EQ(DecodeRankTable(version).status().code(), Code::kProtocol);
  EXPECT_THAT(DecodeRankTable(version).status().message(), HasSubstr("format version 2"));
  std::string changed = Sample();
  changed.back() = static_cast<char>(changed.back() ^ 1);
  EXPECT_EQ(DecodeRankTable(changed).status().code(), Code::kCorrupt);
  EXPECT_THAT(DecodeRankTable(changed).status().message(), HasSubstr("checksum"));
  EXPECT_THAT(DecodeRankTable("{}").status().message(), HasSubstr("its first bytes are wrong"));
  EXPECT_FALSE(DecodeRankTable("").ok());
}

TEST(TableFormatTest, EveryTruncationIsRefused) {
  const std::string whole = Sample();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(DecodeRankTable(whole.substr(0, size)).ok());
    EXPECT_FALSE(DecodeRankTable(WithChecksum(whole.substr(0, size))).ok()) << size;
  }
  EXPECT_FALSE(DecodeRankTable(WithChecksum(whole + '\0')).ok());
  // The same with a list of copies, which must not begin, end or number where it cannot.
  const std::string several = SampleOfSeveral(RankTable::Role::kInference);
  ASSERT_TRUE(DecodeRankTable(several).ok());
  std::string wrong = several;
  wrong.back() = 0;  // The last copy's number.
  EXPECT_THAT(DecodeRankTable(WithChecksum(wrong)).status().message(), HasSubstr("list of copies"));
  for (size_t left = 1; left < 5; ++left)  // Two copies: a count and two pairs.
    EXPECT_FALSE(DecodeRankTable(WithChecksum(several.substr(0, several.size() - left))).ok()) << left;
  EXPECT_FALSE(DecodeRankTable(WithChecksum(several + '\1')).ok());
}

/// What a decoder promises of anything that it accepts.
void ExpectConsistent(const RankTable& table) {
  for (const RankTable::Route& route : table.routes) {
    RC_ASSERT(route.src_shard < table.source_shards.size());
    RC_ASSERT(route.dst_shard < table.destination_shards.size());
    RC_ASSERT(Contains(table.source_shards[route.src_shard].box, route.src_box));
    RC_ASSERT(
        Contains(table.destination_shards[route.dst_shard].box, {route.dst_offset, route.src_box.size}));
    RC_ASSERT(std::binary_search(table.peers.begin(), table.peers.end(), route.peer));
  }
  for (const auto& shard : table.source_shards) {
    const TensorInfo& tensor = table.source_tensors.at(static_cast<size_t>(shard.tensor));
    RC_ASSERT(CheckTensor(tensor).ok());
    RC_ASSERT(CheckBox(shard.box, tensor).ok());
  }
}

RC_GTEST_PROP(TableFormatProperty, ChangedBytesNeverGiveAnInconsistentTable, ()) {
  static const std::string kSamples[] = {Sample(), Sample(RankTable::Role::kInference),
                                         SampleOfSeveral(RankTable::Role::kTrainer)};
  std::string bytes = kSamples[*rc::gen::inRange(0, 3)];
  for (int changes = *rc::gen::inRange(1, 4); changes > 0; --changes) {
    const auto at = static_cast<size_t>(*rc::gen::inRange<int64_t>(0, static_cast<int64_t>(bytes.size())));
    bytes[at] = *rc::gen::arbitrary<char>();
  }
  if (*rc::gen::inRange(0, 4) > 0) bytes = WithChecksum(bytes);
  const auto table = DecodeRankTable(bytes);
  if (table.ok()) ExpectConsistent(*table);
}

RC_GTEST_PROP(VarintProperty, NumbersComeBack,
              (const std::vector<uint64_t>& wide, const std::vector<uint16_t>& narrow)) {
  VarintWriter out;
  for (const uint64_t value : wide) out.Put(value);
  for (const uint16_t value : narrow) out.Put(uint64_t{value} * value);
  const std::string bytes = out.Take();
  VarintReader in(bytes);
  for (const uint64_t value : wide) RC_ASSERT(in.Get(UINT64_MAX) == value);
  for (const uint16_t value : narrow) RC_ASSERT(in.Get(UINT64_MAX) == uint64_t{value} * value);
  RC_ASSERT(in.AtEnd());
}

TEST(VarintTest, BordersComeBackAndOverlongNumbersDoNot) {
  for (int bit = 0; bit < 64; ++bit) {
    for (const uint64_t value : {(uint64_t{1} << bit) - 1, uint64_t{1} << bit}) {
      VarintWriter out;
      out.Put(value);
      const std::string bytes = out.Take();
      VarintReader in(bytes);
      EXPECT_EQ(in.Get(UINT64_MAX), value);
      EXPECT_TRUE(in.AtEnd()) << value;
    }
  }
  const std::string endless(11, '\x80');
  const std::string nines(9, '\xff');
  for (const std::string& bytes :
       {endless, std::string("\x80\0", 2), std::string("\xff\0", 2), nines + "\x02"}) {
    VarintReader in(bytes);
    in.Get(UINT64_MAX);
    EXPECT_FALSE(in.ok());
  }
}

std::string RandomBytes(size_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
  return bytes;
}

TEST(PiecesTest, AreSmallAndComeBackInAnyOrder) {
  const std::string bytes = RandomBytes(3'500'000, 1) + std::string(2'000'000, 'x');
  auto pieces = *SplitPieces(bytes);
  EXPECT_EQ(pieces.size(), 4U);
  for (const std::string& piece : pieces) EXPECT_LE(piece.size(), kMaxPieceBytes);
  std::reverse(pieces.begin(), pieces.end());
  EXPECT_EQ(*JoinPieces(pieces), bytes);
  EXPECT_EQ(*JoinPieces(*SplitPieces("")), "");
  EXPECT_EQ(SplitPieces("")->size(), 1U);
}

TEST(PiecesTest, WhatIsMissingTwiceOrForeignIsRefused) {
  const auto pieces = *SplitPieces(RandomBytes(2'500'000, 1));
  const auto others = *SplitPieces(RandomBytes(2'500'000, 2));
  ASSERT_EQ(pieces.size(), 3U);
  const auto why = [](const std::vector<std::string>& some) { return JoinPieces(some).status(); };
  EXPECT_EQ(why({}).code(), Code::kCorrupt);
  EXPECT_THAT(why({pieces[0], pieces[1]}).message(), HasSubstr("2 of 3"));
  EXPECT_THAT(why({pieces[0], pieces[1], pieces[1]}).message(), HasSubstr("twice"));
  EXPECT_THAT(why({pieces[0], others[1], pieces[2]}).message(), HasSubstr("different messages"));
  EXPECT_THAT(why({pieces[0], "rubbish", pieces[2]}).message(), HasSubstr("not a piece"));
  std::string changed = pieces[1];
  changed[kMaxPieceBytes / 2] = static_cast<char>(changed[kMaxPieceBytes / 2] + 1);
  EXPECT_THAT(why({pieces[0], changed, pieces[2]}).message(), HasSubstr("checksum"));
  EXPECT_EQ(JoinPieces(pieces, 2'499'999).status().code(), Code::kExhausted);
}

TEST(PiecesTest, AnEmptyPromiseOfMuchIsNotBelieved) {
  // A piece that is sound but says that it unpacks to more than it does.
  std::string piece = (*SplitPieces("little"))[0];
  constexpr size_t kRawBytesAt = 8 + 8 + 4 + 4;
  piece[kRawBytesAt + 2] = 1;
  ByteWriter checksum;
  checksum.Put(Hash64(std::string_view(piece).substr(16)));
  checksum.bytes().copy(piece.data() + 8, 8);
  EXPECT_EQ(JoinPieces(std::vector<std::string>{piece}).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace weightcast::plan
