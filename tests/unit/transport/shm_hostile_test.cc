// A peer that breaks the rules ends its link, and nothing else.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "open_fds.h"
#include "transport/shm/regions.h"
#include "unit/transport/shm_hostile_peer.h"

namespace weightcast::transport::shm {
namespace {

class ShmHostileTest : public ::testing::Test {
 protected:
  void ExpectDown(Code code) {
    ASSERT_TRUE(peer.PumpUntil([&] { return peer.down.has_value(); }));
    EXPECT_EQ(peer.down->code(), code) << peer.down->message();
  }
  /// Memory of the victim that nobody may write to without a grant.
  RegionName RegisterVictims(Access access) {
    const RegionName name{.owner = peer.victim_self, .id = 3, .generation = 9};
    const DescribedMemory region{.address = memory.data(), .length = memory.size(), .allocation{}};
    EXPECT_TRUE(peer.victim->Register(name, region, access).ok());
    return name;
  }
  [[nodiscard]] bool Untouched() const {
    return std::all_of(memory.begin(), memory.end(), [](std::byte byte) { return byte == std::byte{0x11}; });
  }
  std::vector<std::byte> memory = std::vector<std::byte>(64 * 1024, std::byte{0x11});
  HostilePeer peer;
};

TEST_F(ShmHostileTest, ByTheRulesItIsReady) {
  ASSERT_TRUE(peer.BecomeReady());
  ASSERT_TRUE(peer.ExchangeRings());
  peer.Push(SignalRecord{.transfer = 1});
  ASSERT_TRUE(peer.PumpUntil([&] { return peer.signals == 1; }));
  EXPECT_FALSE(peer.down);
}

TEST_F(ShmHostileTest, AWrongCookieIsSentAwayAndTheLinkWaitsOn) {
  ASSERT_TRUE(peer.Connect(std::chrono::milliseconds(300)));
  Hello hello = peer.GoodHello();
  hello.cookie[0] ^= 1;
  peer.Greet(hello, peer.inbox.fd(), peer.fence.fd.get());
  ExpectDown(Code::kTimedOut);
}

TEST_F(ShmHostileTest, AnotherIncarnationIsRefused) {
  ASSERT_TRUE(peer.Connect());
  Hello hello = peer.GoodHello();
  hello.incarnation ^= 1;
  peer.Greet(hello, peer.inbox.fd(), peer.fence.fd.get());
  ExpectDown(Code::kProtocol);
}

TEST_F(ShmHostileTest, AnInboxThatCouldBeCutShortIsNotMapped) {
  ASSERT_TRUE(peer.Connect());
  const UniqueFd open_ended(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(open_ended.get(), sizeof(Inbox)), 0);
  peer.Greet(peer.GoodHello(), open_ended.get(), peer.fence.fd.get());
  ExpectDown(Code::kPermission);
}

TEST_F(ShmHostileTest, ATooShortFencePageIsNotMapped) {
  ASSERT_TRUE(peer.Connect());
  auto short_page = CreateShared(4096, true);
  ASSERT_TRUE(short_page.ok());
  peer.Greet(peer.GoodHello(), peer.inbox.fd(), short_page->fd.get());
  ExpectDown(Code::kPermission);
}

TEST_F(ShmHostileTest, AnInboxThatIsNotWhatItSaysIsRefused) {
  ASSERT_TRUE(peer.Connect());
  Hello hello = peer.GoodHello();
  hello.map_nonce ^= 1;
  peer.Greet(hello, peer.inbox.fd(), peer.fence.fd.get());
  ExpectDown(Code::kProtocol);
}

TEST_F(ShmHostileTest, AHelloWithoutDescriptorsIsRefused) {
  ASSERT_TRUE(peer.Connect());
  ASSERT_TRUE(peer.channel.Send(Encode(peer.GoodHello())).ok());
  ExpectDown(Code::kProtocol);
}

TEST_F(ShmHostileTest, MessagesOutOfPlaceEndTheLink) {
  const Verdict bad{.map_seen = true, .copy_seen = true};
  for (const std::string& message : {Encode(bad), Encode(Trial{1, 1}), Encode(RegionReply{}), Encode(Hello{}),
                                     std::string("noise"), std::string(300, 'x')}) {
    HostilePeer each;
    ASSERT_TRUE(each.BecomeReady());
    ASSERT_TRUE(each.channel.Send(message).ok());
    ASSERT_TRUE(each.PumpUntil([&] { return each.down.has_value(); }));
    EXPECT_EQ(each.down->code(), Code::kProtocol);
  }
}

TEST_F(ShmHostileTest, ARegionThatIsNotOpenIsNotHandedOut) {
  RegisterVictims(Access::kLocal);
  ASSERT_TRUE(peer.BecomeReady());
  for (const WantRegion& request :
       {WantRegion{3, 9}, WantRegion{3, 8}, WantRegion{~0U, 1}, WantRegion{4, 1}}) {
    ASSERT_TRUE(peer.channel.Send(Encode(request)).ok());
    const auto reply = peer.Await(MessageKind::kRegion);
    ASSERT_TRUE(reply);
    EXPECT_TRUE(reply->fds.empty());
    EXPECT_EQ(Decode<RegionReply>(reply->bytes)->code, Code::kPermission);
  }
}

TEST_F(ShmHostileTest, WhoNeverReadsIsAnsweredOnlySoOften) {
  RegisterVictims(Access::kReadWrite);
  ASSERT_TRUE(peer.BecomeReady());
  const size_t before = test::OpenFds();
  for (int i = 0; i < 20'000 && !peer.down; ++i) {
    if (!peer.channel.congested()) (void)peer.channel.Send(Encode(WantRegion{3, 9}));
    peer.Pump();
  }
  EXPECT_LT(test::OpenFds(), before + 3 * Channel::kMostWaiting);
}

TEST_F(ShmHostileTest, StrangersWhoSayNothingDoNotKeepOthersOut) {
  ASSERT_TRUE(peer.Connect());
  std::vector<Channel> strangers;
  for (int i = 0; i < 600; ++i) {
    auto stranger = Channel::Connect(peer.victim_name);
    if (stranger.ok()) strangers.push_back(std::move(stranger).value());
    if (i % 50 == 0) peer.Pump();
  }
  EXPECT_GT(strangers.size(), 300U);
  HostilePeer honest;
  ASSERT_TRUE(honest.BecomeReady());
  // The one that was first has been sent away for the sake of the others; it may come again.
  auto again = Channel::Connect(peer.victim_name);
  ASSERT_TRUE(again.ok());
  peer.channel = std::move(again).value();
  peer.Greet(peer.GoodHello(), peer.inbox.fd(), peer.fence.fd.get());
  EXPECT_TRUE(peer.Await(MessageKind::kTrial));
}

TEST_F(ShmHostileTest, PutsWithoutAGrantOrOutOfBoundsTouchNothing) {
  const RegionName name = RegisterVictims(Access::kGranted);
  ASSERT_TRUE(peer.BecomeReady());
  ASSERT_TRUE(peer.ExchangeRings());
  ASSERT_TRUE(peer.victim->OpenGrant(HostilePeer::kLink, {.slot = 2, .id = 22}, {}).ok());
  // A peer can scribble on the words that it shares: what counts is the victim's own table.
  peer.victim_inbox.As<Inbox>()->grant[5].store(55);
  const PutRecord good{.flags = kLastPiece,
                       .slot = 2,
                       .length = 64,
                       .grant = 22,
                       .region = name.id,
                       .generation = name.generation};
  PutRecord bad = good;
  uint64_t position = 0;
  const auto push = [&](const PutRecord& record) {
    PutRecord numbered = record;
    numbered.position = position++ * 64;
    numbered.sequence = position;
    peer.Push(numbered);
  };
  bad.slot = 0, bad.grant = 0;
  push(bad);
  bad.slot = 5, bad.grant = 55;
  push(bad);
  bad = good, bad.grant = 23;
  push(bad);
  bad = good, bad.generation = 8;
  push(bad);
  bad = good, bad.region = ~0U;
  push(bad);
  bad = good, bad.offset = memory.size() - 63;
  push(bad);
  bad = good, bad.offset = ~uint64_t{0} - 3;
  push(bad);
  for (int i = 0; i < 100; ++i) peer.Pump();
  EXPECT_TRUE(Untouched());
  EXPECT_FALSE(peer.down);
  push(good);
  ASSERT_TRUE(peer.PumpUntil([&] { return !Untouched(); }));
}

TEST_F(ShmHostileTest, GetsOfWhatIsNotReadableGiveNothing) {
  const RegionName name = RegisterVictims(Access::kGranted);
  ASSERT_TRUE(peer.BecomeReady());
  ASSERT_TRUE(peer.ExchangeRings());
  peer.Push(GetRecord{.region = name.id, .generation = name.generation, .length = 100, .sequence = 1});
  RecordBody body;
  ASSERT_TRUE(peer.PumpUntil([&] { return peer.inbox.records().Pop(body); }));
  const auto reply = Unpack<DataRecord>(body);
  EXPECT_EQ(reply.kind, RecordKind::kData);
  EXPECT_EQ(reply.code, static_cast<uint8_t>(Code::kPermission));
}

TEST_F(ShmHostileTest, RecordsThatBreakTheRulesEndTheLink) {
  const std::vector<std::vector<RecordBody>> kBad = {
      {Pack(AnswerRecord{.sequence = 1})},                        // Nothing was posted.
      {Pack(DataRecord{.length = 8, .sequence = 1})},             // Nothing was asked for.
      {Pack(DataRecord{.code = 1, .sequence = 1})},               //
      {Pack(PutRecord{.length = 8, .position = kPayloadBytes})},  // Outside the ring.
      {Pack(PutRecord{.length = ~0U})},                           //
      {Pack(PutRecord{.slot = kGrantSlots, .length = 8})},        // No such slot.
      {Pack(SignalRecord{.after_put = 1})},                       // After no put.
      {Pack(PutRecord{.flags = kLastPiece | kSignalled, .length = 8}), Pack(GetRecord{})},
      {RecordBody{}},
      {RecordBody{0xff}},
      std::vector<RecordBody>(65, Pack(GetRecord{.length = 1 << 20, .sequence = 1})),
  };
  for (const auto& records : kBad) {
    HostilePeer each;
    ASSERT_TRUE(each.BecomeReady());
    ASSERT_TRUE(each.ExchangeRings());
    for (const RecordBody& record : records) each.PushRaw(record);
    if (records.size() > 64) {  // Gets that are refused are answered at once; let answers find no room.
      for (int i = 0; i < 20'000 && !each.down; ++i) each.PushRaw(records[0]);
    }
    ASSERT_TRUE(each.PumpUntil([&] { return each.down.has_value(); })) << "case " << &records - kBad.data();
    EXPECT_EQ(each.down->code(), Code::kProtocol);
  }
}

TEST_F(ShmHostileTest, ImpossibleCountersEndTheLink) {
  ASSERT_TRUE(peer.BecomeReady());
  peer.inbox.shared().grant[2].store(22);
  peer.inbox.shared().records_taken.store(1U << 20);
  const GrantName grant{.slot = 2, .id = 22};
  std::vector<Op> ops(
      64, {.kind = OpKind::kSignal, .has_signal = true, .grant = grant, .signal = {.grant = grant}});
  ASSERT_TRUE(peer.PumpUntil([&] {
    peer.victim->Post(HostilePeer::kLink, 0, ops);
    return peer.down.has_value();
  }));
  EXPECT_EQ(peer.down->code(), Code::kProtocol);
}

/// Records that are nearly right, and noise: never a crash, never a byte out of place.
TEST_F(ShmHostileTest, NoiseInTheRingIsHarmless) {
  std::minstd_rand random(17);
  for (int round = 0; round < 60; ++round) {
    HostilePeer each;
    const RegionName name{.owner = each.victim_self, .id = 3, .generation = 9};
    const DescribedMemory region{.address = memory.data(), .length = memory.size(), .allocation{}};
    ASSERT_TRUE(each.victim->Register(name, region, Access::kGranted).ok());
    ASSERT_TRUE(each.BecomeReady());
    ASSERT_TRUE(each.ExchangeRings());
    uint64_t position = 0;
    for (int i = 0; i < 300 && !each.down; ++i) {
      PutRecord put{.flags = static_cast<uint8_t>(random() % 8),
                    .slot = static_cast<uint16_t>(random() % 3),
                    .length = static_cast<uint32_t>(random() % 70'000),
                    .grant = random() % 3,
                    .region = static_cast<uint32_t>(random() % 5),
                    .generation = static_cast<uint32_t>(8 + random() % 3),
                    .offset = random() % 70'000,
                    .position = position,
                    .sequence = static_cast<uint64_t>(i)};
      position += put.length;
      RecordBody body = Pack(put);
      if (random() % 8 == 0) body[random() % body.size()] ^= uint64_t{1} << (random() % 64);
      if (random() % 50 == 0) {
        for (uint64_t& word : body) word = random() * random();
      }
      each.PushRaw(body);
      if (i % 16 == 0) each.Pump();
    }
    for (int i = 0; i < 50; ++i) each.Pump();
    ASSERT_TRUE(Untouched());
  }
}

}  // namespace
}  // namespace weightcast::transport::shm
