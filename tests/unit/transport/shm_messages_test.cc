// Blobs, keys and messages: what is encoded is decoded, and nothing else.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "transport/shm/messages.h"
#include "transport/shm/regions.h"
#include "transport/shm/source_messages.h"
#include "transport/shm/stage_budget.h"

namespace weightcast::transport::shm {
namespace {

struct Case {
  std::string bytes;
  std::function<bool(std::string_view)> decodes;
};

std::vector<Case> AllCases() {
  const Invitation invitation{.boot_id = "abc-def", .name = "weightcast-1234", .cookie = {1, 2}};
  const Hello hello{{3, 4}, 5, 6, 7, 8};
  const RegionKey key{.access = Access::kGranted, .mappable = true, .address = 4096, .length = 77};
  SourceOffer offer{
      .region = {13, 14}, .exportable = device::Exportable::kDescriptors, .blocks = {{3, 1 << 21}}};
  offer.allocation = 3 << 21;
  offer.length = 100;
  const SourceHandles handles{.exportable = device::Exportable::kLegacy, .count = 1, .handles = {{}}};
  return {
      {Encode(WantSource{.region = {13, 14}}), [](std::string_view b) { return Decode<WantSource>(b).ok(); }},
      {Encode(offer), [](std::string_view b) { return Decode<SourceOffer>(b).ok(); }},
      {Encode(handles), [](std::string_view b) { return Decode<SourceHandles>(b).ok(); }},
      {Encode(SourceVerdict{.region = {13, 14}, .reads = true}),
       [](std::string_view b) { return Decode<SourceVerdict>(b).ok(); }},
      {Encode(Drop{.region = {13, 14}}), [](std::string_view b) { return Decode<Drop>(b).ok(); }},
      {Encode(Dropped{.region = {13, 14}, .all = true}),
       [](std::string_view b) { return Decode<Dropped>(b).ok(); }},
      {Encode(invitation), [](std::string_view b) { return DecodeInvitation(b).ok(); }},
      {Encode(hello), [](std::string_view b) { return Decode<Hello>(b).ok(); }},
      {Encode(Trial{1, 2}), [](std::string_view b) { return Decode<Trial>(b).ok(); }},
      {Encode(Verdict{true, false}), [](std::string_view b) { return Decode<Verdict>(b).ok(); }},
      {Encode(WantRegion{9, 10}), [](std::string_view b) { return Decode<WantRegion>(b).ok(); }},
      {Encode(RegionReply{9, 10, Code::kOk, 11, 12}),
       [](std::string_view b) { return Decode<RegionReply>(b).ok(); }},
      {Encode(RingReply{Code::kExhausted}), [](std::string_view b) { return Decode<RingReply>(b).ok(); }},
      {Encode(WantStage{kLongestStage}), [](std::string_view b) { return Decode<WantStage>(b).ok(); }},
      {Encode(StageReply{Code::kOk, kShortestStage}),
       [](std::string_view b) { return Decode<StageReply>(b).ok(); }},
      {EncodeKey(key), [](std::string_view b) { return DecodeKey(b).ok(); }}};
}

TEST(ShmMessagesTest, WhatIsEncodedIsDecoded) {
  for (const Case& each : AllCases()) EXPECT_TRUE(each.decodes(each.bytes));
  const auto hello = Decode<Hello>(Encode(Hello{{3, 4}, 5, 6, 7, 8}));
  ASSERT_TRUE(hello.ok());
  EXPECT_EQ(hello->cookie, (Cookie{3, 4}));
  EXPECT_EQ(hello->incarnation, 5U);
  EXPECT_EQ(hello->copy_nonce, 8U);
  const auto reply = Decode<RegionReply>(Encode(RegionReply{9, 10, Code::kPermission, 11, 12}));
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->code, Code::kPermission);
  EXPECT_EQ(reply->length, 12U);
  const auto key = DecodeKey(EncodeKey({Access::kRead, true, 1ULL << 47, 1ULL << 40}));
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(key->access, Access::kRead);
  EXPECT_TRUE(key->mappable);
  EXPECT_EQ(key->address, 1ULL << 47);
}

TEST(ShmMessagesTest, ShorterLongerAndOtherKindsAreRefused) {
  const auto cases = AllCases();
  for (const Case& each : cases) {
    for (size_t cut = 0; cut < each.bytes.size(); ++cut)
      EXPECT_FALSE(each.decodes(each.bytes.substr(0, cut)));
    EXPECT_FALSE(each.decodes(each.bytes + "x"));
    for (const Case& other : cases) {
      EXPECT_EQ(each.decodes(other.bytes), &other == &each);
    }
  }
}

TEST(ShmMessagesTest, NoiseIsHarmless) {
  std::minstd_rand random(1);
  for (int round = 0; round < 2'000; ++round) {
    for (Case& each : AllCases()) {
      each.bytes[random() % each.bytes.size()] = static_cast<char>(random());
      (void)each.decodes(each.bytes);
      (void)KindOf(each.bytes);
    }
  }
}

TEST(ShmMessagesTest, AnOfferIsWhatItWas) {
  SourceOffer offer;
  offer.region = {13, 14};
  offer.exportable = device::Exportable::kFabric;
  offer.identity = 15;
  offer.allocation = (2 << 21) + (20 << 20);
  offer.offset = 16;
  offer.length = 17;
  offer.blocks = RunsOf({{nullptr, 2 << 20, 1}, {nullptr, 2 << 20, 2}, {nullptr, 20 << 20, 3}});
  const auto decoded = Decode<SourceOffer>(Encode(offer));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->region, offer.region);
  EXPECT_EQ(decoded->identity, 15U);
  EXPECT_EQ(LengthsOf(decoded->blocks), (std::vector<uint64_t>{2 << 20, 2 << 20, 20 << 20}));
  offer.offset = offer.allocation;
  EXPECT_FALSE(Decode<SourceOffer>(Encode(offer)).ok()) << "it ends outside its allocation";
  offer.offset = 0;
  offer.blocks = {{.count = 1U << 21, .length = 1}};
  EXPECT_FALSE(Decode<SourceOffer>(Encode(offer)).ok()) << "more blocks than a device has pages";
}

TEST(ShmMessagesTest, AStagingRingIsAPowerOfTwoWithinBounds) {
  for (const uint64_t bad : {uint64_t{0}, kShortestStage / 2, kLongestStage * 2, kShortestStage * 3, ~0UL}) {
    EXPECT_FALSE(Decode<WantStage>(Encode(WantStage{bad})).ok()) << bad;
    EXPECT_FALSE(Decode<StageReply>(Encode(StageReply{Code::kOk, bad})).ok()) << bad;
    EXPECT_TRUE(Decode<StageReply>(Encode(StageReply{Code::kExhausted, bad})).ok()) << "there is none";
  }
}

TEST(ShmMessagesTest, AKeyThatWrapsAroundTheAddressSpaceIsRefused) {
  EXPECT_FALSE(DecodeKey(EncodeKey({Access::kReadWrite, false, ~uint64_t{0} - 10, 12})).ok());
}

}  // namespace
}  // namespace weightcast::transport::shm
