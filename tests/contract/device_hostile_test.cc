// A peer whose messages of device memory break the rules: it ends its own link, or gets a refusal. Nothing of
// it crashes, lands or leaks.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>

#include "contract/suite.h"
#include "device/handles.h"
#include "open_fds.h"
#include "transport/shm/source_messages.h"
#include "unit/transport/shm_hostile_peer.h"

namespace weightcast::transport::shm {
namespace {

constexpr size_t kSize = 2U << 20;
constexpr RegionId kSource{7, 70};

/// A victim with memory of device 0 that a grant opens, and a hostile peer in the same process, which has
/// memory of the same device: so its offers need neither handles nor a trial.
struct DeviceScene {
  DeviceScene() {
    target.Wipe();
    EXPECT_TRUE(peer.victim->Register(region, target.memory(), Access::kGranted).ok());
    EXPECT_TRUE(peer.BecomeReady());
    EXPECT_TRUE(peer.victim->OpenGrant(HostilePeer::kLink, kGrant, {}).ok());
    // By the rules: what it offers is open, and of that generation.
    peer.inbox.OpenSources();
    peer.fence.mapping.As<FencePage>()->generation[kSource.first].store(kSource.second);
    const TestMemory skipped(4096, TestPlace::kDevice);  // Of device 1: the next scene's is of device 0.
    uuid = Uuid(0);
    other_uuid = Uuid(1);
  }
  [[nodiscard]] DeviceUuid Uuid(int ordinal) const {
    drivers::CUuuid raw{};
    drivers::CUdevice device = 0;
    drivers::Cuda& cuda = static_cast<DevicesInUse*>(TestDevices::current())->cuda();
    cuda.DeviceGet(&device, ordinal);
    cuda.DeviceGetUuid(&raw, device);
    DeviceUuid found{};
    std::memcpy(found.data(), &raw, sizeof raw);
    return found;
  }
  /// A source of one block, of another process as it says.
  [[nodiscard]] SourceOffer Offer(device::Exportable exportable) const {
    return {.region = kSource,
            .reader = uuid,
            .exportable = exportable,
            .device = uuid,
            .process = 4711,
            .identity = 1,
            .allocation = kSize,
            .length = kSize,
            .blocks = {{.count = 1, .length = kSize}}};
  }
  template <typename Message>
  void Send(const Message& message, std::span<const int> fds = {}) {
    EXPECT_TRUE(peer.channel.Send(Encode(message), fds).ok());
  }
  /// What the victim says of the source; nullopt: it ended the link.
  std::optional<bool> Verdict() {
    const auto reply = peer.Await(MessageKind::kSourceVerdict);
    if (!reply) return std::nullopt;
    return Decode<SourceVerdict>(reply->bytes)->reads;
  }
  void ExpectEnd(const std::string& why) {
    ASSERT_TRUE(peer.PumpUntil([&] { return peer.down.has_value(); })) << why;
    EXPECT_EQ(peer.down->code(), Code::kProtocol) << why << ": " << peer.down->message();
  }
  [[nodiscard]] PullRecord Order(uint64_t sequence) const {
    return {.flags = kLastPiece,
            .slot = static_cast<uint16_t>(kGrant.slot),
            .length = 4096,
            .grant = kGrant.id,
            .region = region.id,
            .generation = region.generation,
            .source = kSource.first,
            .source_generation = kSource.second,
            .sequence = sequence};
  }
  /// How the order went.
  Code Answer(const PullRecord& order) {
    peer.Push(order);
    RecordBody body{};
    EXPECT_TRUE(peer.PumpUntil([&] { return peer.inbox.records().Pop(body) || peer.down; }));
    peer.inbox.Publish();
    const auto answer = Unpack<AnswerRecord>(body);
    EXPECT_EQ(answer.kind, RecordKind::kAnswer);
    EXPECT_EQ(answer.sequence, order.sequence);
    return static_cast<Code>(answer.code);
  }

  TestMemory target{kSize, TestPlace::kDevice};
  HostilePeer peer;
  const RegionName region{.owner = peer.victim_self, .id = 3, .generation = 9};
  DeviceUuid uuid{};
  DeviceUuid other_uuid{};
};

class DeviceHostileTest : public ::testing::Test {
 protected:
  Machine machine = std::make_unique<const FakeMachine>();
  DeviceUse use{machine};
};

using device::Exportable;

TEST_F(DeviceHostileTest, OffersThatBreakTheRulesEndTheLink) {
  struct Case {
    std::string name;
    std::function<void(const DeviceScene&, SourceOffer&)> spoil;
  };
  const std::vector<Case> cases = {
      {"the region lies outside of its allocation",
       [](const DeviceScene&, SourceOffer& it) { it.length += 1; }},
      {"its end is beyond all numbers", [](const DeviceScene&, SourceOffer& it) { it.offset = UINT64_MAX; }},
      {"too many blocks", [](const DeviceScene&, SourceOffer& it) { it.blocks[0].count = (1U << 20) + 1; }},
      {"no blocks", [](const DeviceScene&, SourceOffer& it) { it.blocks.clear(); }},
      {"runs of no block", [](const DeviceScene&, SourceOffer& it) { it.blocks[0].count = 0; }},
      {"blocks whose sum is beyond all numbers",
       [](const DeviceScene&, SourceOffer& it) {
         it.blocks.assign(2, {.count = UINT32_MAX, .length = UINT64_MAX});
       }},
      {"an id that no region has",
       [](const DeviceScene&, SourceOffer& it) { it.region.first = kMaxRegions; }},
      {"a way that was not tried", [](const DeviceScene& of, SourceOffer& it) { it.device = of.other_uuid; }},
      {"handles are left out", [](const DeviceScene&, SourceOffer& it) { it.own = true; }},
      {"no handles though it is of this process",
       [](const DeviceScene&, SourceOffer& it) { it.process = device::ProcessName(); }},
      {"a trial of another length",
       [](const DeviceScene& of, SourceOffer& it) {
         it.region.first = kTrialRegion;
         it.device = of.other_uuid;
       }},
      {"a trial of a device with itself",
       [](const DeviceScene&, SourceOffer& it) {
         it.region.first = kTrialRegion;
         it.length = device::TrialCell::kBytes;
       }},
  };
  for (const Case& each : cases) {
    DeviceScene scene;
    SourceOffer offer = scene.Offer(Exportable::kLegacy);
    each.spoil(scene, offer);
    scene.Send(offer);
    scene.ExpectEnd(each.name);
  }
}

TEST_F(DeviceHostileTest, HandlesThatBreakTheRulesEndTheLink) {
  const int fd = STDIN_FILENO;
  const std::array<std::byte, 64> noise{std::byte{0x5a}};
  struct Case {
    std::string name;
    std::function<void(DeviceScene&)> send;
  };
  const SourceHandles one{.exportable = Exportable::kDescriptors, .count = 1, .handles = {}};
  const std::vector<Case> cases = {
      {"without an offer", [&](DeviceScene& scene) { scene.Send(one, {&fd, 1}); }},
      {"another offer before them",
       [&](DeviceScene& scene) {
         scene.Send(scene.Offer(Exportable::kDescriptors));
         scene.Send(scene.Offer(Exportable::kDescriptors));
       }},
      {"without descriptors",
       [&](DeviceScene& scene) {
         scene.Send(scene.Offer(Exportable::kDescriptors));
         scene.Send(one);
       }},
      {"more than blocks",
       [&](DeviceScene& scene) {
         scene.Send(scene.Offer(Exportable::kDescriptors));
         SourceHandles two = one;
         two.count = 2;
         scene.Send(two, std::array{fd, fd});
       }},
      {"of another kind",
       [&](DeviceScene& scene) {
         scene.Send(scene.Offer(Exportable::kFabric));
         scene.Send(SourceHandles{.exportable = Exportable::kLegacy, .count = 1, .handles = {noise}});
       }},
      {"descriptors beside handles of bytes",
       [&](DeviceScene& scene) {
         scene.Send(scene.Offer(Exportable::kLegacy));
         scene.Send(SourceHandles{.exportable = Exportable::kLegacy, .count = 1, .handles = {noise}},
                    {&fd, 1});
       }},
      {"none in the message",
       [&](DeviceScene& scene) {
         scene.Send(scene.Offer(Exportable::kDescriptors));
         SourceHandles none = one;
         none.count = 0;
         scene.Send(none);
       }},
  };
  for (const Case& each : cases) {
    DeviceScene scene;
    each.send(scene);
    scene.ExpectEnd(each.name);
  }
}

// The driver finds out, and says so: the link and the context go on.
TEST_F(DeviceHostileTest, WhatIsNoHandleIsNotRead) {
  DeviceScene scene;
  const size_t before = test::OpenFds();
  const UniqueFd memory(memfd_create("no handle", MFD_CLOEXEC));
  const int fd = memory.get();
  const std::array<std::byte, 64> noise{std::byte{0x5a}};
  SourceOffer offer = scene.Offer(Exportable::kDescriptors);
  scene.Send(offer);
  scene.Send(SourceHandles{.exportable = Exportable::kDescriptors, .count = 1, .handles = {}}, {&fd, 1});
  EXPECT_EQ(scene.Verdict(), std::optional(false));
  for (const Exportable exportable : {Exportable::kLegacy, Exportable::kFabric}) {
    ++offer.region.first;
    offer.exportable = exportable;
    scene.Send(offer);
    scene.Send(SourceHandles{.exportable = exportable, .count = 1, .handles = {noise}});
    EXPECT_EQ(scene.Verdict(), std::optional(false));
  }
  EXPECT_FALSE(scene.peer.down);
  EXPECT_EQ(scene.Answer(scene.Order(1)), Code::kCancelled);
  EXPECT_TRUE(scene.target.Wiped());
  EXPECT_EQ(test::OpenFds(), before + 1);
}

TEST_F(DeviceHostileTest, ImpossibleLengthsOfBlocksAreNotRead) {
  DeviceScene scene;
  SourceOffer offer = scene.Offer(Exportable::kFabric);
  const std::array<std::byte, 64> noise{std::byte{0x5a}};
  for (const std::vector<BlockRun>& blocks : {std::vector<BlockRun>{{.count = 1, .length = 0}},
                                              std::vector<BlockRun>{{.count = 1, .length = 1ULL << 60}}}) {
    ++offer.region.first;
    offer.blocks = blocks;
    scene.Send(offer);
    scene.Send(SourceHandles{.exportable = Exportable::kFabric, .count = 1, .handles = {noise}});
    EXPECT_EQ(scene.Verdict(), std::optional(false));
  }
  EXPECT_FALSE(scene.peer.down);
}

TEST_F(DeviceHostileTest, ASourceThatIsOfferedTwiceEndsTheLink) {
  DeviceScene scene;
  const UniqueFd memory(memfd_create("no handle", MFD_CLOEXEC));
  const int fd = memory.get();
  for (int i = 0; i < 2; ++i) {
    scene.Send(scene.Offer(Exportable::kDescriptors));
    scene.Send(SourceHandles{.exportable = Exportable::kDescriptors, .count = 1, .handles = {}}, {&fd, 1});
  }
  scene.ExpectEnd("twice");
}

TEST_F(DeviceHostileTest, ALinkThatEndsBeforeItsHandlesComeLeavesNothing) {
  DeviceScene scene;
  SourceOffer offer = scene.Offer(Exportable::kFabric);
  offer.blocks = {{.count = 1000, .length = kSize}};
  offer.allocation = 1000 * kSize;
  scene.Send(offer);
  scene.peer.Pump();
  scene.peer.channel.Close();
  EXPECT_TRUE(scene.peer.PumpUntil([&] { return scene.peer.down.has_value(); }));
}

TEST_F(DeviceHostileTest, NewsOfWhatWasNeverOfferedIsNoNews) {
  DeviceScene scene;
  scene.Send(SourceVerdict{.region = {1, 1}, .reader = scene.uuid, .reads = true});
  scene.Send(SourceVerdict{.region = {kTrialRegion, 1}, .reader = scene.uuid, .reads = true});
  scene.Send(Drop{.region = {1, 1}});
  scene.Send(Drop{.region = {kTrialRegion, 1}});
  scene.Send(Dropped{.region = {1, 1}});
  EXPECT_TRUE(scene.peer.Await(MessageKind::kDropped));
  // It may not be read, and not by a device of the caller's invention either.
  scene.Send(WantSource{.region = {scene.region.id, scene.region.generation}, .reader = {}});
  const auto refusal = scene.peer.Await(MessageKind::kSourceOffer);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(Decode<SourceOffer>(refusal->bytes)->code, Code::kPermission);
  EXPECT_FALSE(scene.peer.down);
}

// A peer that invents devices costs one cell at a time.
TEST_F(DeviceHostileTest, RequestsOfInventedDevicesAreTriedOneAfterAnother) {
  DeviceScene scene;
  const RegionName open{.owner = scene.peer.victim_self, .id = 4, .generation = 10};
  const TestMemory memory(kSize, TestPlace::kDevice);
  ASSERT_TRUE(scene.peer.victim->Register(open, memory.memory(), Access::kRead).ok());
  for (uint8_t i = 1; i <= 20; ++i) {
    scene.Send(WantSource{.region = {open.id, open.generation}, .reader = {std::byte{i}}});
  }
  const auto first = scene.peer.Await(MessageKind::kSourceOffer);
  ASSERT_TRUE(first);
  EXPECT_EQ(Decode<SourceOffer>(first->bytes)->region.first, kTrialRegion);
  for (int i = 0; i < 1000; ++i) scene.peer.Pump();
  const auto more = scene.peer.channel.Receive();
  EXPECT_TRUE(more.ok());
  while (true) {  // Its handle, and no second cell.
    const auto next = scene.peer.channel.Receive();
    if (!next.ok() || !*next) break;
    EXPECT_NE(KindOf((*next)->bytes).value(), MessageKind::kSourceOffer);
  }
}

TEST_F(DeviceHostileTest, OrdersThatAreNotAllowedAreRefusedAndCopyNothing) {
  DeviceScene scene;
  const auto said = [&](const std::function<void(PullRecord&)>& spoil) {
    static uint64_t sequence = 0;
    PullRecord order = scene.Order(++sequence);
    spoil(order);
    return scene.Answer(order);
  };
  EXPECT_EQ(said([](PullRecord& order) { order.generation = 8; }), Code::kPermission);
  EXPECT_EQ(said([](PullRecord& order) { order.region = 999; }), Code::kPermission);
  EXPECT_EQ(said([](PullRecord& order) { order.grant = 23; }), Code::kFenced);
  EXPECT_EQ(said([](PullRecord& order) { order.slot = 0, order.grant = 0; }), Code::kPermission);
  EXPECT_EQ(said([](PullRecord& order) { order.offset = kSize - 4095; }), Code::kOutOfBounds);
  EXPECT_EQ(said([](PullRecord& order) { order.offset = UINT64_MAX - 5; }), Code::kOutOfBounds);
  EXPECT_EQ(said([](PullRecord& order) { order.length = UINT32_MAX; }), Code::kOutOfBounds);
  EXPECT_EQ(said([](PullRecord&) {}), Code::kCancelled) << "never offered";
  EXPECT_TRUE(scene.target.Wiped());
  EXPECT_FALSE(scene.peer.down);
}

TEST_F(DeviceHostileTest, OrdersThatBreakTheRulesEndTheLink) {
  const auto spoilt = [](const std::function<void(PullRecord&)>& spoil) {
    DeviceScene scene;
    PullRecord order = scene.Order(1);
    spoil(order);
    scene.peer.Push(order);
    if ((order.flags & kSignalled) != 0) scene.peer.Push(scene.Order(2));
    scene.ExpectEnd("an order");
    EXPECT_TRUE(scene.target.Wiped());
  };
  spoilt([](PullRecord& order) { order.slot = kGrantSlots; });
  spoilt([](PullRecord& order) { order.source = kMaxRegions; });
  spoilt([](PullRecord& order) { order.flags |= kSignalled; });
}

}  // namespace
}  // namespace weightcast::transport::shm
