// A peer that breaks the rules of staging ends its link, and nothing else; of device memory it reaches
// nothing by the paths of host memory.
#include <algorithm>
#include <vector>

#include "contract/suite.h"
#include "unit/transport/shm_hostile_peer.h"

namespace weightcast::transport::shm {
namespace {

constexpr RegionName kHost{.owner = 0, .id = 3, .generation = 9};
constexpr RegionName kDevice{.owner = 0, .id = 4, .generation = 10};
constexpr uint64_t kStage = kShortestStage;

/// A victim with a host region and a device region, open or granted, and a peer with its staging ring.
struct StagedScene {
  explicit StagedScene(Access access) {
    Register(kHost, {.address = host.data(), .length = host.size(), .allocation{}}, access);
    device.Wipe();
    Register(kDevice, device.memory(), access);
    Require(peer.BecomeReady(), "it does not become ready");
    Require(peer.victim->OpenGrant(HostilePeer::kLink, kGrant, {}).ok(), "OpenGrant");
  }
  void Register(RegionName name, const DescribedMemory& memory, Access access) {
    name.owner = peer.victim_self;
    Require(peer.victim->Register(name, memory, access).ok(), "Register");
  }
  bool AskForStage() {
    (void)peer.channel.Send(Encode(WantStage{.most = kStage}));
    const auto reply = peer.Await(MessageKind::kStage);
    return reply && reply->fds.size() == 1 && Decode<StageReply>(reply->bytes)->length == kStage;
  }
  bool Down() {
    return peer.PumpUntil([&] { return peer.down.has_value(); }) && peer.down->code() == Code::kProtocol;
  }
  template <typename T>
  T Answer() {
    RecordBody body;
    Require(peer.PumpUntil([&] { return peer.inbox.records().Pop(body); }), "no answer comes");
    peer.inbox.Publish();
    return Unpack<T>(body);
  }
  [[nodiscard]] bool Untouched() const {
    return device.Wiped() && std::ranges::all_of(host, [](std::byte byte) { return byte == std::byte{1}; });
  }
  std::vector<std::byte> host = std::vector<std::byte>(64 * 1024, std::byte{1});
  TestMemory device{64 * 1024, TestPlace::kSecluded};
  HostilePeer peer;
};

class StagedHostileTest : public ::testing::Test {
 protected:
  Machine machine = MachineOf({{"shm", &CreateShmTransport}, TestPlace::kSecluded, {}});
  DeviceUse use{machine};
};

PutRecord Put(const RegionName& region, uint64_t position, uint64_t sequence) {
  return {.flags = kLastPiece | kInStage,
          .slot = 2,
          .length = 64,
          .grant = 22,
          .region = region.id,
          .generation = region.generation,
          .position = position,
          .sequence = sequence};
}

TEST_F(StagedHostileTest, PutsWithoutAGrantOrOutOfBoundsTouchNothing) {
  for (const RegionName& region : {kHost, kDevice}) {
    StagedScene scene(Access::kGranted);
    ASSERT_TRUE(scene.AskForStage());
    std::vector<PutRecord> bad(7, Put(region, 0, 0));
    bad[0].slot = 0, bad[0].grant = 0;
    bad[1].grant = 23;
    bad[2].slot = 5;
    bad[3].generation += 1;
    bad[4].region = ~0U;
    bad[5].offset = scene.host.size() - 63;
    bad[6].offset = ~uint64_t{0} - 3;
    uint64_t number = 0;
    for (PutRecord& record : bad) {
      record.position = number * 64;
      record.sequence = ++number;
      scene.peer.Push(record);
      const auto answer = scene.Answer<AnswerRecord>();
      EXPECT_EQ(answer.sequence, number);
      EXPECT_NE(answer.code, 0) << number;
    }
    EXPECT_TRUE(scene.Untouched());
    EXPECT_FALSE(scene.peer.down);
    scene.peer.Push(Put(region, number * 64, number + 1));
    EXPECT_EQ(scene.Answer<AnswerRecord>().code, 0);
    EXPECT_FALSE(scene.Untouched());
  }
}

TEST_F(StagedHostileTest, RecordsThatBreakTheRulesEndTheLink) {
  PutRecord outside = Put(kHost, kStage - 63, 1);
  PutRecord skips = Put(kHost, kStage, 1);
  PutRecord empty = Put(kHost, 0, 1);
  empty.length = 0;
  PutRecord long_one = Put(kHost, 0, 1);
  long_one.length = ~0U;
  PutRecord slot = Put(kHost, 0, 1);
  slot.slot = kGrantSlots;
  PutRecord signalled = Put(kHost, 0, 1);
  signalled.flags |= kSignalled;
  const std::vector<std::vector<RecordBody>> kBad = {
      {Pack(outside)},
      {Pack(skips)},
      {Pack(empty)},
      {Pack(long_one)},
      {Pack(slot)},
      {Pack(Put(kHost, 64, 1)), Pack(Put(kHost, 0, 2))},  // Backwards.
      {Pack(signalled), Pack(Put(kHost, 64, 2))},         // The signal is missing.
      {Pack(DataRecord{.flags = kInStage, .length = 8, .sequence = 1})},
      {Pack(DataRecord{.flags = kInStage | kLastPiece, .code = 1, .sequence = 1})},
  };
  for (const auto& records : kBad) {
    StagedScene scene(Access::kGranted);
    ASSERT_TRUE(scene.AskForStage());
    for (const RecordBody& record : records) scene.peer.PushRaw(record);
    EXPECT_TRUE(scene.Down()) << "case " << &records - kBad.data();
  }
}

TEST_F(StagedHostileTest, ARingThatWasNotMadeHoldsNothing) {
  StagedScene scene(Access::kGranted);
  scene.peer.Push(Put(kHost, 0, 1));
  EXPECT_TRUE(scene.Down());
}

TEST_F(StagedHostileTest, MessagesOutOfPlaceEndTheLink) {
  {
    StagedScene scene(Access::kGranted);
    ASSERT_TRUE(scene.AskForStage());
    (void)scene.peer.channel.Send(Encode(WantStage{.most = kStage}));
    EXPECT_TRUE(scene.Down()) << "a second ring";
  }
  StagedScene scene(Access::kGranted);
  (void)scene.peer.channel.Send(Encode(StageReply{.code = Code::kExhausted}));
  EXPECT_TRUE(scene.Down()) << "a ring that was not asked for";
}

// The victim asks for a ring because the peer reads its device memory.
TEST_F(StagedHostileTest, ARingThatIsNotAsWasAskedForEndsTheLink) {
  auto small = CreateShared(kShortestStage / 2, false);
  auto large = CreateShared(2 * kLongestStage, false);
  ASSERT_TRUE(small.ok() && large.ok());
  struct {
    uint64_t length;
    int fd;
  } const kBad[] = {
      {kShortestStage, -1}, {kShortestStage, small->fd.get()}, {kLongestStage * 2, large->fd.get()}};
  for (const auto& bad : kBad) {
    StagedScene scene(Access::kRead);
    scene.peer.Push(GetRecord{.flags = kInStage,
                              .region = kDevice.id,
                              .generation = kDevice.generation,
                              .length = 64,
                              .sequence = 1});
    ASSERT_TRUE(scene.peer.Await(MessageKind::kWantStage));
    const std::string reply = Encode(StageReply{.length = bad.length});
    (void)(bad.fd < 0 ? scene.peer.channel.Send(reply) : scene.peer.channel.Send(reply, std::array{bad.fd}));
    ASSERT_TRUE(scene.peer.PumpUntil([&] { return scene.peer.down.has_value(); }));
    EXPECT_NE(scene.peer.down->code(), Code::kOk);
  }
}

TEST_F(StagedHostileTest, ImpossibleCountersEndTheLink) {
  StagedScene scene(Access::kRead);
  auto ring = CreateShared(kShortestStage, false);
  ASSERT_TRUE(ring.ok());
  const GetRecord get{.flags = kInStage,
                      .region = kHost.id,
                      .generation = kHost.generation,
                      .length = scene.host.size(),
                      .sequence = 1};
  scene.peer.inbox.shared().staged_taken.store(1U << 30);
  scene.peer.Push(get);
  ASSERT_TRUE(scene.peer.Await(MessageKind::kWantStage));
  (void)scene.peer.channel.Send(Encode(StageReply{.length = kShortestStage}), std::array{ring->fd.get()});
  EXPECT_TRUE(scene.Down());
}

TEST_F(StagedHostileTest, MoreReadsThanTheWindowEndTheLink) {
  StagedScene scene(Access::kRead);
  for (uint64_t i = 0; i < 100 && !scene.peer.down; ++i) {
    scene.peer.Push(GetRecord{.flags = kInStage,
                              .region = kDevice.id,
                              .generation = kDevice.generation,
                              .length = 64,
                              .sequence = i + 1});
  }
  EXPECT_TRUE(scene.Down());
}

TEST_F(StagedHostileTest, ThePathsOfHostMemoryDoNotReachDeviceMemory) {
  StagedScene scene(Access::kReadWrite);
  ASSERT_TRUE(scene.peer.ExchangeRings());
  scene.peer.Push(PutRecord{.flags = kLastPiece,
                            .length = 64,
                            .region = kDevice.id,
                            .generation = kDevice.generation,
                            .sequence = 1});
  EXPECT_EQ(scene.Answer<AnswerRecord>().code, static_cast<uint8_t>(Code::kPermission));
  scene.peer.Push(
      GetRecord{.region = kDevice.id, .generation = kDevice.generation, .length = 64, .sequence = 1});
  EXPECT_EQ(scene.Answer<DataRecord>().code, static_cast<uint8_t>(Code::kPermission));
  EXPECT_TRUE(scene.Untouched());
  EXPECT_FALSE(scene.peer.down);
}

}  // namespace
}  // namespace weightcast::transport::shm
