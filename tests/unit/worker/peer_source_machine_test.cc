#include "worker/peer_source_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "unit/worker/updates.h"
#include "worker/inference_machine.h"

namespace weightcast::worker {
namespace {

const Version kThird{.run = 1, .number = 3};
const Status kWanted(Code::kCancelled, "a newer version comes");

PeerSourceStart StartOf(uint64_t sequence, uint32_t destination, Version held = kThird) {
  return {{PeerUpdate(sequence), kThird, destination, 1, 9}, held};
}

/// A peer source with its runtime played by the test.
struct Source {
  PeerSourceState state;
  std::vector<PeerSourceAction> actions;

  explicit Source(bool prepared = true) {
    Do(protocol::Welcome{.term = kTerm, .run = {.number = 1}, .lease_seconds = 5});
    Do(PeerSourcePlanArrived{2});
    if (prepared) Do(SendPlanReady{2});
  }
  void Do(const PeerSourceEvent& event) { actions = Advance(state, event); }
  template <typename T>
  std::optional<T> Sent() const {
    for (const auto& action : actions)
      if (const auto* send = std::get_if<SendMessage>(&action))
        if (const auto* message = std::get_if<T>(&send->message)) return *message;
    return std::nullopt;
  }
  template <typename T>
  [[nodiscard]] size_t Count() const {
    size_t count = 0;
    for (const auto& action : actions) count += std::holds_alternative<T>(action) ? 1 : 0;
    return count;
  }
};

TEST(PeerSourceMachine, GivesUntilReleased) {
  Source source(/*prepared=*/false);
  source.Do(SendPlanReady{1});
  EXPECT_TRUE(source.actions.empty()) << "of an older plan";
  source.Do(SendPlanReady{2});
  EXPECT_EQ(source.Sent<protocol::Prepared>()->epoch, 2U);
  source.Do(StartOf(1, 0));
  source.Do(StartOf(1, 1));
  EXPECT_EQ(source.Count<BeginSending>(), 1U);
  source.Do(SendEnded{.update = PeerUpdate(1), .destination = 0, .status = {}});
  source.Do(SendFenced{PeerUpdate(1), 0});
  EXPECT_TRUE(source.actions.empty()) << "the receiver tells";
  EXPECT_TRUE(Lends(source.state));
  source.Do(protocol::Release{PeerUpdate(1), kThird});
  EXPECT_EQ(source.Count<StopSending>(), 1U);
  EXPECT_TRUE(Lends(source.state)) << "free before the fence";
  source.Do(SendFenced{PeerUpdate(1), 1});
  EXPECT_FALSE(Lends(source.state));
  source.Do(StartOf(2, 0));
  EXPECT_EQ(source.Count<BeginSending>(), 1U) << "the plan still holds";
}

TEST(PeerSourceMachine, RefusesWhatItDoesNotHold) {
  Source source;
  for (const Version& held : {Version{}, Version{.run = 1, .number = 4}, Version{.run = 2, .number = 3}}) {
    source.Do(StartOf(1, 4, held));
    const auto failed = source.Sent<protocol::Failed>();
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->update, PeerUpdate(1));
    EXPECT_EQ(failed->destination, 4);
    EXPECT_FALSE(Lends(source.state));
  }
  StartOrder other_epoch = StartOf(1, 4).start;
  other_epoch.update.epoch = 1;
  source.Do(PeerSourceStart{other_epoch, kThird});
  EXPECT_EQ(source.Sent<protocol::Failed>()->destination, 4);
  StartOrder other_term = StartOf(1, 4).start;
  other_term.update.term.number = 9;
  source.Do(PeerSourceStart{other_term, kThird});
  EXPECT_TRUE(source.actions.empty());
  Source unprepared(/*prepared=*/false);
  unprepared.Do(StartOf(1, 0));
  EXPECT_TRUE(unprepared.Sent<protocol::Failed>());
}

TEST(PeerSourceMachine, FailuresNameTheDestination) {
  Source source;
  source.Do(StartOf(1, 3));
  const Status reason(Code::kPeerDead, "gone");
  source.Do(SendEnded{.update = PeerUpdate(1), .destination = 3, .status = reason});
  EXPECT_EQ(*source.Sent<protocol::Failed>(), (protocol::Failed{PeerUpdate(1), 3, reason}));
  EXPECT_TRUE(Lends(source.state));
  source.Do(PeerSourcePlanArrived{5});
  EXPECT_EQ(source.Count<StopSending>(), 0U) << "it has ended already";
  source.Do(SendPlanFailed{.epoch = 5, .reason = reason, .destination = 1});
  EXPECT_EQ(*source.Sent<protocol::Failed>(), (protocol::Failed{{.term = kTerm, .epoch = 5}, 1, reason}));
}

TEST(PeerSourceMachine, StopSilencesOneDestination) {
  Source source;
  source.Do(StartOf(1, 0));
  source.Do(StartOf(1, 1));
  source.Do(protocol::Stop{PeerUpdate(1), 1});
  EXPECT_EQ(source.Count<StopSending>(), 1U);
  source.Do(SendEnded{.update = PeerUpdate(1), .destination = 1, .status = kWanted});
  EXPECT_TRUE(source.actions.empty());
  source.Do(SendEnded{.update = PeerUpdate(1), .destination = 0, .status = kWanted});
  EXPECT_TRUE(source.Sent<protocol::Failed>());
}

TEST(PeerSourceMachine, EverythingEndsWithPlanSessionAndMemory) {
  const std::vector<PeerSourceEvent> ends = {
      PeerSourcePlanArrived{3}, protocol::Welcome{.term = kTerm, .run = {.number = 1}}, SessionEnded{},
      MemoryReclaimed{.reason = kWanted, .leaves = true}, MemoryReclaimed{.reason = kWanted}};
  for (const PeerSourceEvent& end : ends) {
    Source source;
    source.Do(StartOf(1, 0));
    source.Do(StartOf(1, 1));
    source.Do(SendEnded{.update = PeerUpdate(1), .destination = 1, .status = {}});
    source.Do(end);
    EXPECT_EQ(source.Count<StopSending>(), 1U);
    const bool reclaimed = std::holds_alternative<MemoryReclaimed>(end);
    EXPECT_EQ(source.Sent<protocol::Failed>().has_value(), reclaimed) << "who waits must hear of it";
    EXPECT_TRUE(Lends(source.state));
    source.Do(SendFenced{PeerUpdate(1), 0});
    source.Do(SendFenced{PeerUpdate(1), 1});
    EXPECT_FALSE(Lends(source.state));
    source.Do(StartOf(2, 0));
    const bool plan_stays = reclaimed && !std::get<MemoryReclaimed>(end).leaves;
    EXPECT_EQ(source.Count<BeginSending>(), plan_stays ? 1U : 0U);
  }
}

// --- With the machine of what the same rank receives -----------------------------------------------------

/// A rank that has received and serves kThird.
InferenceState Served(protocol::Landing landing, bool shares = true) {
  InferenceState state;
  const auto update = PeerUpdate(1);
  for (const InferenceEvent& event : std::vector<InferenceEvent>{
           protocol::Welcome{.term = kTerm, .run = {.number = 1}},
           RegisterCalled{.landing = landing, .shares = shares}, PlanArrived{2}, PlanReady{2}, WaitCalled{},
           protocol::GrantRequest{update, kThird}, GrantsOpened{update, {}}, Arrived{update, 1, 1},
           GrantsFenced{update}, protocol::Commit{update}, SwitchRun{.update = update},
           protocol::Serve{update}})
    Advance(state, event);
  EXPECT_EQ(state.served, kThird);
  return state;
}
template <typename T>
bool Has(const std::vector<InferenceAction>& actions) {
  for (const auto& action : actions)
    if (std::holds_alternative<T>(action)) return true;
  return false;
}

TEST(LentMemory, IsWhatHasLandedAndWasNotGrantedSince) {
  for (const auto landing : {protocol::Landing::kInPlace, protocol::Landing::kShadow}) {
    InferenceState state = Served(landing);
    EXPECT_EQ(VersionToLend(state), kThird);
    EXPECT_EQ(VersionToLend(Served(landing, /*shares=*/false)), Version{});
    Advance(state, WaitCalled{});
    Advance(state, protocol::GrantRequest{PeerUpdate(2), {.run = 1, .number = 4}});
    EXPECT_EQ(VersionToLend(state), Version{});
    Advance(state, GrantsOpened{PeerUpdate(2), {}});
    Advance(state, Arrived{PeerUpdate(2), 1, 1});
    EXPECT_EQ(VersionToLend(state), Version{}) << "before the fence";
    Advance(state, GrantsFenced{PeerUpdate(2)});
    EXPECT_EQ(VersionToLend(state), (Version{.run = 1, .number = 4})) << "ready is enough";
  }
}

TEST(LentMemory, IsReclaimedBeforeItIsGranted) {
  for (const auto landing : {protocol::Landing::kInPlace, protocol::Landing::kShadow}) {
    InferenceState state = Served(landing);
    Advance(state, MemoryLent{});
    Advance(state, WaitCalled{});
    const auto actions = Advance(state, protocol::GrantRequest{PeerUpdate(2), {.run = 1, .number = 4}});
    EXPECT_TRUE(Has<ReclaimMemory>(actions));
    EXPECT_FALSE(Has<OpenGrants>(actions));
    EXPECT_EQ(VersionToLend(state), Version{}) << "nobody may begin to read now";
    EXPECT_EQ(state.served, kThird) << "nothing has changed yet";
    EXPECT_TRUE(Has<OpenGrants>(Advance(state, MemoryFree{})));
  }
}

TEST(LentMemory, AnAbortBeforeItIsFreeLeavesItAsItWas) {
  InferenceState state = Served(protocol::Landing::kShadow);
  Advance(state, MemoryLent{});
  Advance(state, protocol::GrantRequest{PeerUpdate(2), {.run = 1, .number = 4}});
  Advance(state, protocol::Abort{.update = PeerUpdate(2), .reason = kWanted, .started = false});
  EXPECT_EQ(state.step, Step::kNone);
  EXPECT_TRUE(Advance(state, MemoryFree{}).empty());
  EXPECT_EQ(VersionToLend(state), kThird);
}

TEST(LentMemory, IsNotRegisteredAnew) {
  InferenceState state = Served(protocol::Landing::kInPlace);
  Advance(state, MemoryLent{});
  const RegisterCalled again{.landing = protocol::Landing::kInPlace, .same_memory = true};
  auto actions = Advance(state, again);
  EXPECT_EQ(std::get<AnswerCall>(actions.at(0)).status.code(), Code::kUnavailable);
  Advance(state, MemoryFree{});
  Advance(state, again);
  EXPECT_EQ(VersionToLend(state), kThird) << "the same tensors";
  Advance(state, RegisterCalled{.landing = protocol::Landing::kShadow, .same_memory = true});
  EXPECT_EQ(VersionToLend(state), Version{}) << "an empty spare buffer";
  EXPECT_EQ(state.served, kThird);
}

TEST(LentMemory, GivingUpWhatLandedInPlaceLendsItNoMore) {
  InferenceState state = Served(protocol::Landing::kInPlace);
  Advance(state, BeginCalled{});
  Advance(state, protocol::GrantRequest{PeerUpdate(2), {.run = 1, .number = 4}});
  Advance(state, GrantsOpened{PeerUpdate(2), {}});
  Advance(state, Arrived{PeerUpdate(2), 1, 1});
  Advance(state, GrantsFenced{PeerUpdate(2)});
  Advance(state, protocol::Abort{.update = PeerUpdate(2), .reason = kWanted});
  EXPECT_EQ(VersionToLend(state), Version{});
}

}  // namespace
}  // namespace weightcast::worker
