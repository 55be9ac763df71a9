#include <gmock/gmock.h>

#include <array>
#include <vector>

#include "transport/verbs/operations.h"

namespace weightcast::transport::verbs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class VerbsOperationsTest : public ::testing::Test {
 protected:
  static constexpr GrantName kOpen{.slot = 1, .id = 11};

  VerbsOperationsTest() {
    local.length = 4096;
    local.live = true;
    local.registered = {&region};
    imported.access = Access::kGranted;
    imported.length = 4096;
    imported.rkeys = {5};
  }
  void Push(Op op) {
    op.cookie = ++pushed;
    operations.Push(op, op.kind == OpKind::kSignal ? nullptr : &local);
  }
  void PushWrite() { Push({.length = 8, .grant = kOpen, .signal = {}}); }
  void PushSignal(bool first) {
    Push({.kind = OpKind::kSignal, .first = first, .grant = {}, .signal = {.grant = kOpen}});
  }
  /// The next one is posted wholly; its last work request is the one before `after_last`.
  void Post(uint32_t after_last) {
    Operation& operation = *operations.ToPost();
    operation.any_posted = operation.posted = true;
    operation.after_last = after_last;
    operations.OnPosted();
  }
  /// Cookies and codes of the completions since the last call.
  std::vector<std::pair<uint64_t, Code>> Told() {
    std::array<Event, 64> out;
    std::vector<std::pair<uint64_t, Code>> told;
    const size_t count = events.Take(out);
    for (size_t i = 0; i < count; ++i) {
      const auto& done = std::get<Completion>(out[i]);
      told.emplace_back(done.cookie, done.code);
    }
    return told;
  }

  ibv_mr region{};
  LocalRegion local;
  ImportedRegion imported;
  Regions regions{[] {}, [](LocalRegion&) {}};
  EventQueue events;
  Operations operations{LinkId{3}, regions, events};
  uint64_t pushed = 0;
};

TEST_F(VerbsOperationsTest, TheyCompleteInTheirOrderOnceTheirLastWorkRequestHas) {
  for (int i = 0; i < 3; ++i) PushWrite();
  EXPECT_EQ(local.uses, 3U);
  Post(1);
  Post(4);
  operations.CompleteUpTo(3);
  EXPECT_THAT(Told(), ElementsAre(Pair(1, Code::kOk)));
  EXPECT_EQ(local.uses, 2U);
  operations.CompleteUpTo(4);
  EXPECT_THAT(Told(), ElementsAre(Pair(2, Code::kOk)));
  operations.CompleteUpTo(4);
  EXPECT_THAT(Told(), IsEmpty()) << "the third is not posted";
  Post(5);
  operations.CompleteUpTo(5);
  EXPECT_THAT(Told(), ElementsAre(Pair(3, Code::kOk)));
  EXPECT_TRUE(operations.empty());
  EXPECT_EQ(local.uses, 0U);
}

TEST_F(VerbsOperationsTest, NumbersOfWorkRequestsWrapAround) {
  PushWrite();
  PushWrite();
  Post(0xffffffff);
  Post(1);
  operations.CompleteUpTo(0);
  EXPECT_THAT(Told(), ElementsAre(Pair(1, Code::kOk)));
  operations.CompleteUpTo(1);
  EXPECT_THAT(Told(), ElementsAre(Pair(2, Code::kOk)));
}

TEST_F(VerbsOperationsTest, ThereIsNoRoomForMoreThanItsDepth) {
  while (operations.HasRoom()) PushWrite();
  EXPECT_EQ(pushed, 128U);
  Post(1);
  operations.CompleteUpTo(1);
  EXPECT_TRUE(operations.HasRoom());
}

TEST_F(VerbsOperationsTest, OneThatIsRefusedHalfWayCompletesOnceWhatWasPostedHas) {
  PushWrite();
  Operation& operation = *operations.ToPost();
  operation.any_posted = true;
  operation.after_last = 2;
  operations.Refuse(operation, Code::kFenced, 1);
  operations.OnPosted();
  EXPECT_THAT(Told(), IsEmpty());
  operations.CompleteUpTo(2);
  EXPECT_THAT(Told(), ElementsAre(Pair(1, Code::kFenced)));
}

TEST_F(VerbsOperationsTest, ARefusedWriteWithholdsTheSignalBehindItAndNotTheNext) {
  PushWrite();
  PushSignal(false);
  PushSignal(false);
  operations.Refuse(*operations.ToPost(), Code::kOutOfBounds, 0);
  operations.OnPosted();
  EXPECT_EQ(operations.EndSignal(*operations.ToPost()), Code::kOutOfBounds);
  Post(1);
  EXPECT_EQ(operations.EndSignal(*operations.ToPost()), Code::kOk);
  // What was refused before its first write does not count.
  operations.Refuse(*operations.ToPost(), Code::kOutOfBounds, 0);
  operations.OnPosted();
  PushWrite();
  operations.Refuse(*operations.ToPost(), Code::kOutOfBounds, 0);
  operations.OnPosted();
  PushSignal(true);
  operations.BeginSignal(*operations.ToPost());
  EXPECT_EQ(operations.EndSignal(*operations.ToPost()), Code::kOk);
}

TEST_F(VerbsOperationsTest, WithoutAQueuePairWhatWasNeverPostedEndsAndTheRestWaitsForThePeer) {
  for (int i = 0; i < 3; ++i) PushWrite();
  Post(1);
  Post(2);
  operations.Blame(Code::kPermission);
  operations.EndUnposted();
  EXPECT_THAT(Told(), ElementsAre(Pair(3, Code::kUnavailable)));
  EXPECT_EQ(operations.ToPost(), nullptr);
  operations.Settle(Code::kUnavailable, /*peer_alive=*/true);
  EXPECT_THAT(Told(), ElementsAre(Pair(1, Code::kPermission), Pair(2, Code::kUnavailable)));
  EXPECT_TRUE(operations.empty());
  EXPECT_EQ(local.uses, 0U);
}

TEST_F(VerbsOperationsTest, ARefusalByAPeerThatIsDeadSaysNothing) {
  PushWrite();
  Post(1);
  operations.Blame(Code::kPermission);
  operations.Settle(Code::kUnavailable, /*peer_alive=*/false);
  EXPECT_THAT(Told(), ElementsAre(Pair(1, Code::kUnavailable)));
}

TEST_F(VerbsOperationsTest, WhatIsNotAllowedIsFoundBeforeItIsPosted) {
  const Operation fine{.local = &local, .length = 8, .grant = kOpen, .signal = {}};
  EXPECT_EQ(fine.Check(&imported, 0, 0), Code::kOk);
  EXPECT_EQ(fine.Check(nullptr, 0, 0), Code::kInvalidArgument) << "no such import";
  EXPECT_EQ(fine.Check(&imported, 0, 1), Code::kPermission) << "no key for that NIC of the peer";
  Operation one = fine;
  one.local_offset = 4089;
  EXPECT_EQ(one.Check(&imported, 0, 0), Code::kOutOfBounds);
  one = fine;
  one.remote_offset = 4089;
  EXPECT_EQ(one.Check(&imported, 0, 0), Code::kOutOfBounds);
  one = fine;
  one.kind = OpKind::kRead;
  EXPECT_EQ(one.Check(&imported, 0, 0), Code::kPermission) << "it may be written only";
  one.has_signal = true;
  EXPECT_EQ(one.Check(&imported, 0, 0), Code::kInvalidArgument);
  one = fine;
  one.grant = {};
  EXPECT_EQ(one.Check(&imported, 0, 0), Code::kPermission) << "it may be written under a grant only";
  local.registered = {nullptr};
  EXPECT_EQ(fine.Check(&imported, 0, 0), Code::kPermission) << "the NIC was dead";
}

}  // namespace
}  // namespace weightcast::transport::verbs
