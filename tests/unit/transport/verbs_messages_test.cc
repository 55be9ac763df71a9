#include <gtest/gtest.h>

#include "transport/verbs/address.h"
#include "transport/verbs/leases.h"
#include "transport/verbs/messages.h"
#include "transport/verbs/peer_grants.h"

namespace weightcast::transport::verbs {
namespace {

constexpr GrantName kLastGrant{.slot = 63, .id = ~uint64_t{0}};

std::vector<Message> Examples() {
  std::vector<Message> examples = {
      Probe{.cookie = 1, .queue = 2, .generation = 3},
      Record{.lease = 2047, .transfer = 1, .chunk = 6, .chunks = 7, .checksum = 8}};
  const ControlMessage controls[] = {Start{},
                                     Started{},
                                     GrantOpened{kLastGrant, 2047},
                                     AskGrant{kLastGrant},
                                     GrantClosed{kLastGrant},
                                     RevokeGrant{kLastGrant, 9},
                                     RegionOver{1, 2, 3},
                                     Fenced{4},
                                     QueueOver{5, 6},
                                     QueueOffer{7, 8, 0xffffff, 10},
                                     QueueAnswer{7, 8, 9, 0xffffff},
                                     Bye{},
                                     NewAddress{.rail = 1, .facts = 0x85, .lid = 2, .gid = {3}}};
  for (const ControlMessage& control : controls) {
    examples.emplace_back(Numbered{.cookie = 11, .number = 12, .message = control});
  }
  return examples;
}

std::string BytesOf(const Message& message) {
  const MessageBytes encoded = Encode(message);
  return {encoded.bytes.data(), encoded.length};
}

TEST(VerbsMessagesTest, ComeBackAsTheyWere) {
  for (const Message& example : Examples()) {
    const std::string bytes = BytesOf(example);
    const auto parsed = ParseMessage(bytes);
    ASSERT_TRUE(parsed.has_value()) << example.index();
    EXPECT_EQ(parsed->index(), example.index());
    EXPECT_EQ(BytesOf(*parsed), bytes);
  }
}

TEST(VerbsMessagesTest, FitIntoWhatEveryDeviceSendsInline) {
  for (const Message& example : Examples()) EXPECT_LE(BytesOf(example).size(), 36U);
}

TEST(VerbsMessagesTest, CutsAndAdditionsAreRefused) {
  for (const Message& example : Examples()) {
    const std::string bytes = BytesOf(example);
    for (size_t cut = 0; cut < bytes.size(); ++cut)
      EXPECT_FALSE(ParseMessage(bytes.substr(0, cut)).has_value());
    EXPECT_FALSE(ParseMessage(bytes + '\0').has_value());
  }
}

TEST(VerbsMessagesTest, WhatIsOutOfRangeIsRefused) {
  const auto control = [](const ControlMessage& message) {
    return ParseMessage(BytesOf(Numbered{.cookie = 1, .number = 1, .message = message})).has_value();
  };
  EXPECT_FALSE(control(GrantOpened{{.slot = 0, .id = 1}, 1}));
  EXPECT_FALSE(control(GrantOpened{{.slot = 64, .id = 1}, 1}));
  EXPECT_FALSE(control(GrantOpened{{.slot = 1, .id = 0}, 1}));
  EXPECT_FALSE(control(GrantOpened{kLastGrant, 0}));
  EXPECT_FALSE(control(GrantOpened{kLastGrant, 2048}));
  EXPECT_FALSE(control(NewAddress{.facts = 0}));
  EXPECT_FALSE(control(NewAddress{.facts = 6}));
  EXPECT_FALSE(control(QueueOffer{1, 1, 1U << 24, 0}));
  EXPECT_FALSE(control(QueueAnswer{1, 1, 0, 1U << 24}));
  EXPECT_FALSE(
      ParseMessage(BytesOf(Record{.lease = 2048, .transfer = 0, .chunk = 0, .chunks = 1, .checksum = 0})));
}

TEST(VerbsImmediateTest, StandsForAWholeSmallSignal) {
  for (const Immediate immediate :
       {Immediate{0, 0}, Immediate{2047, kMaxImmediateTransfer}, Immediate{5, 77}}) {
    const auto parsed = ParseImmediate(Encode(immediate));
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(parsed->lease, immediate.lease);
    EXPECT_EQ(parsed->transfer, immediate.transfer);
  }
  EXPECT_FALSE(ParseImmediate(1U << 31).has_value());
  const Signal small{
      .grant = kLastGrant, .transfer = kMaxImmediateTransfer, .chunk = 0, .chunks = 1, .checksum = 0};
  EXPECT_TRUE(FitsImmediate(small));
  Signal other = small;
  other.transfer = kMaxImmediateTransfer + 1;
  EXPECT_FALSE(FitsImmediate(other));
  other = small;
  other.chunks = 2;
  EXPECT_FALSE(FitsImmediate(other));
  other = small;
  other.checksum = 1;
  EXPECT_FALSE(FitsImmediate(other));
}

TEST(VerbsLeasesTest, AreNotGivenAgainSoon) {
  Leases leases;
  std::vector<Lease> given;
  for (uint64_t id = 1; id <= 3000; ++id) {
    const GrantName grant{.slot = 1 + static_cast<uint32_t>(id % 2), .id = id};
    ASSERT_TRUE(leases.Open(grant).ok());
    given.push_back(leases.Of(grant));
    ASSERT_EQ(*leases.Holder(given.back()), grant);
    leases.Close(grant);
    ASSERT_EQ(leases.Holder(given.back()), nullptr);
  }
  for (size_t i = 1; i < given.size(); ++i) {
    EXPECT_NE(given[i], 0);
    for (size_t back = 1; back <= 2000 && back <= i; ++back) ASSERT_NE(given[i], given[i - back]);
  }
}

TEST(VerbsLeasesTest, TheStandingGrantIsLeaseZero) {
  const Leases leases;
  ASSERT_NE(leases.Holder(0), nullptr);
  EXPECT_EQ(*leases.Holder(0), GrantName{});
}

TEST(VerbsPeerGrantsTest, KnowWhatTheyWereTold) {
  PeerGrants grants;
  const GrantName old{.slot = 3, .id = 1};
  const GrantName now{.slot = 3, .id = 2};
  EXPECT_EQ(grants.Look({}), PeerGrants::State::kOpen);
  EXPECT_EQ(grants.Look({.slot = 64, .id = 1}), PeerGrants::State::kClosed);
  EXPECT_EQ(grants.Look(old), PeerGrants::State::kUnknown);
  EXPECT_TRUE(grants.Ask(old));
  EXPECT_FALSE(grants.Ask(old)) << "once is enough";
  grants.Closed(old);
  EXPECT_EQ(grants.Look(old), PeerGrants::State::kClosed);
  grants.Opened(now, 17);
  EXPECT_EQ(grants.Look(now), PeerGrants::State::kOpen);
  EXPECT_EQ(grants.LeaseOf(now), 17);
  EXPECT_EQ(grants.Look(old), PeerGrants::State::kClosed);
  grants.Closed(now);
  EXPECT_EQ(grants.Look(now), PeerGrants::State::kClosed);
}

Address RoceAt(uint8_t a, uint8_t b, uint8_t c, uint8_t d, uint8_t bits) {
  return {.infiniband = false,
          .mtu = 5,
          .reads = 16,
          .lid = 0,
          .grh = false,
          .pkey = 0,
          .gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d},
          .subnet_bits = static_cast<uint8_t>(96 + bits)};
}

TEST(VerbsAddressTest, KnowsItsSubnet) {
  EXPECT_TRUE(SameSubnet(RoceAt(10, 0, 0, 1, 24), RoceAt(10, 0, 0, 200, 24)));
  EXPECT_FALSE(SameSubnet(RoceAt(10, 0, 0, 1, 24), RoceAt(10, 0, 1, 1, 24)));
  EXPECT_TRUE(SameSubnet(RoceAt(10, 0, 0, 1, 23), RoceAt(10, 0, 1, 1, 23)));
  EXPECT_FALSE(SameSubnet(RoceAt(10, 0, 0, 1, 23), RoceAt(10, 0, 1, 1, 24)));
  Address infiniband = RoceAt(10, 0, 0, 1, 24);
  infiniband.infiniband = true;
  EXPECT_FALSE(SameSubnet(RoceAt(10, 0, 0, 1, 24), infiniband));
  EXPECT_NE(WhyApart(RoceAt(10, 0, 0, 1, 24), infiniband), "");
  EXPECT_EQ(WhyApart(RoceAt(10, 0, 0, 1, 24), RoceAt(10, 0, 1, 1, 24)), "");
  EXPECT_EQ(ToString(RoceAt(10, 0, 0, 1, 24)), "10.0.0.1");
}

TEST(VerbsAddressTest, BlobsComeBackAndNothingElseDoes) {
  const Offer offer{
      .cookie = 7,
      .nics = {{.index = 3, .address = RoceAt(1, 2, 3, 4, 24), .control = {1, 2}, .data = {{3, 4}, {5, 6}}}}};
  const Answer answer{
      .cookie = 8,
      .rails = {
          {.offered = 0, .nic = 2, .address = RoceAt(1, 2, 3, 5, 24), .control = {9, 9}, .data = {{7, 7}}}}};
  const RegionKey key{
      .id = 1, .generation = 2, .access = 1, .base = 4096, .length = 10, .part = 10, .rkeys = {5, 6}};
  RegionKey cut = key;
  cut.part = 9;
  ASSERT_TRUE(ParseOffer(Encode(offer)).ok());
  ASSERT_TRUE(ParseAnswer(Encode(answer)).ok());
  ASSERT_TRUE(ParseRegionKey(Encode(key)).ok());
  EXPECT_EQ(Encode(*ParseOffer(Encode(offer))), Encode(offer));
  EXPECT_EQ(Encode(*ParseAnswer(Encode(answer))), Encode(answer));
  EXPECT_EQ(Encode(*ParseRegionKey(Encode(key))), Encode(key));
  EXPECT_EQ(Encode(*ParseRegionKey(Encode(cut))), Encode(cut));
  for (size_t left = 0; left < Encode(offer).size(); ++left)
    EXPECT_FALSE(ParseOffer(Encode(offer).substr(0, left)).ok());
  for (size_t left = 0; left < Encode(answer).size(); ++left)
    EXPECT_FALSE(ParseAnswer(Encode(answer).substr(0, left)).ok());
  for (size_t left = 0; left < Encode(key).size(); ++left)
    EXPECT_FALSE(ParseRegionKey(Encode(key).substr(0, left)).ok());
  EXPECT_FALSE(ParseOffer(Encode(offer) + 'x').ok());
  Offer bad = offer;
  bad.nics[0].control.psn = 1U << 24;
  EXPECT_FALSE(ParseOffer(Encode(bad)).ok());
  bad = offer;
  bad.nics[0].data.clear();
  EXPECT_FALSE(ParseOffer(Encode(bad)).ok());
  RegionKey wraps = key;
  wraps.base = ~uint64_t{0};
  EXPECT_FALSE(ParseRegionKey(Encode(wraps)).ok());
  for (const uint64_t part : {0, 4}) {  // None; three parts of two keys.
    cut.part = part;
    EXPECT_FALSE(ParseRegionKey(Encode(cut)).ok());
  }
  cut.length = 1 << 20;  // More parts than there may be.
  cut.part = 4096;
  cut.rkeys.resize(256);
  EXPECT_FALSE(ParseRegionKey(Encode(cut)).ok());
  std::string other_release = Encode(offer);
  other_release[0] = 9;
  EXPECT_NE(ParseOffer(other_release).status().message().find("version 9"), std::string::npos);
}

}  // namespace
}  // namespace weightcast::transport::verbs
