#include "p2p/metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"
#include "p2p/messages.h"

namespace weightcast::p2p {
namespace {

using ::testing::HasSubstr;

EngineMetadata SomeMetadata() {
  return {.incarnation = 0x1234567890abcdef,
          .rank = 7,
          .gpu = {.index = 3, .label = "0000:3b:00.0", .by_index = true},
          .addresses = {"10.0.0.1:29763", "[fd00::1]:29763", "127.0.0.1:29763"}};
}

TEST(Metadata, EveryEnginesHasTheSameLength) {
  EngineMetadata much = SomeMetadata();
  for (int i = 0; i < 200; ++i) much.addresses.push_back(StrCat("10.1.0.", i, ":29763"));
  EXPECT_EQ(Encode(much).size(), EngineMetadata::kBytes);
  EXPECT_EQ(Encode(SomeMetadata()).size(), EngineMetadata::kBytes);
  const auto parsed = ParseMetadata(Encode(much));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_GT(parsed->addresses.size(), 15U);
  for (size_t i = 0; i < parsed->addresses.size(); ++i) EXPECT_EQ(parsed->addresses[i], much.addresses[i]);
}

TEST(Metadata, ComesBackAsItWas) {
  const auto parsed = ParseMetadata(Encode(SomeMetadata()));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(*parsed, SomeMetadata());
}

TEST(Metadata, NoBitOfItChangesUnseen) {
  const std::string good = Encode(SomeMetadata());
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 4);
    EXPECT_EQ(ParseMetadata(bad).status().code(), Code::kInvalidArgument) << i;
  }
  EXPECT_THAT(ParseMetadata("").status().message(), HasSubstr("must have 512 bytes, and 0 were given"));
  EXPECT_THAT(ParseMetadata(std::string(512, '\0')).status().message(),
              HasSubstr("is of another release of weightcast"));
}

TEST(Advert, HasSixtyFourBytesAndComesBack) {
  const Advert advert{.owner = 5, .memory = 6, .offset = 7, .length = 8, .address = 9};
  const std::string bytes = Encode(advert);
  EXPECT_EQ(bytes.size(), 64U);
  ASSERT_TRUE(ParseAdvert(bytes).ok());
  EXPECT_EQ(*ParseAdvert(bytes), advert);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string bad = bytes;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_FALSE(ParseAdvert(bad).ok()) << i;
  }
  EXPECT_FALSE(ParseAdvert(Encode(Advert{.owner = 5, .memory = 6, .offset = 2, .length = UINT64_MAX})).ok());
}

TEST(Advert, SeveralAtOnce) {
  const std::vector<Advert> adverts = {{.owner = 1, .memory = 1, .length = 4},
                                       {.owner = 1, .memory = 2, .length = 5}};
  const auto parsed = ParseAdverts(Encode(adverts));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, adverts);
  EXPECT_TRUE(ParseAdverts(Encode(std::vector<Advert>{})).ok());
  EXPECT_FALSE(ParseAdverts(Encode(adverts).substr(0, 100)).ok());
  EXPECT_FALSE(ParseAdverts("").ok());
  EXPECT_FALSE(ParseAdverts(Encode(std::vector<Advert>{}).substr(0, 4)).ok())
      << "a number that is not there is not 0";
}

TEST(Messages, ComeBackAsTheyWere) {
  const std::vector<Message> all = {
      Open{.channel = 3, .gpu = SomeMetadata().gpu},
      Close{.channel = 9},
      Describe{.memory = 4, .reason = {}, .descriptor = "opaque"},
      Describe{.memory = 4, .reason = {Code::kInvalidArgument, "gone"}, .descriptor = {}},
      Want{.memory = 4},
      Forget{.memory = 4},
      Offer{.channel = 1, .number = 2, .grant = {3, 4}, .more = true, .slices = {{1, 2, 3}, {4, 5, 6}}},
      Withdraw{.channel = 1, .number = 2, .reason = {Code::kCancelled, "interrupted"}},
      Abandon{.channel = 1, .number = 2, .reason = {Code::kTimedOut, "late"}}};
  for (const Message& message : all) {
    const std::string bytes = Encode(message);
    const auto decoded = Decode(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_TRUE(*decoded == message) << message.index();
    for (size_t cut = 0; cut < bytes.size(); ++cut)
      EXPECT_EQ(Decode(bytes.substr(0, cut)).status().code(), Code::kProtocol)
          << message.index() << " at " << cut;
    EXPECT_FALSE(Decode(bytes + "x").ok());
  }
  EXPECT_FALSE(Decode("\x20").ok());
}

TEST(Messages, FitIntoANotice) {
  Offer offer;
  offer.slices.resize(Offer::kMaxSlices);
  EXPECT_LE(Encode(offer).size(), size_t{32} << 10);
  EXPECT_TRUE(Decode(Encode(offer)).ok());
  offer.slices.resize(Offer::kMaxSlices + 1);
  EXPECT_FALSE(Decode(Encode(offer)).ok());
  const Abandon wordy{.channel = 1, .number = 1, .reason = {Code::kInternal, std::string(100000, 'x')}};
  EXPECT_LE(Encode(wordy).size(), 2000U);
  EXPECT_TRUE(Decode(Encode(wordy)).ok());
}

}  // namespace
}  // namespace weightcast::p2p
