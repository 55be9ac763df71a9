#include "control/update_recorder.h"

#include <gtest/gtest.h>

#include "control/controller_machine.h"

namespace weightcast::control {
namespace {

using protocol::SpanKind;

constexpr SessionId kTrainer = 1;
constexpr SessionId kFirstRank = 2;
constexpr SessionId kSecondRank = 3;
constexpr SessionId kControl = 4;

/// A trainer, an engine of two ranks with an EngineControl, and what they say to the controller.
class Recorder : public ::testing::Test {
 protected:
  Recorder() : state_(InitialState()) {
    state_.roster.SetWorldSize(state_.roster.Change(state_.roster.trainers()), 1);
    const Group& engine = state_.roster.AddGroup("e");
    state_.roster.SetWorldSize(engine, 2);
    Control control;
    control.session = kControl;
    state_.roster.SetControl(engine, control);
    for (const SessionId session : {kTrainer, kFirstRank, kSecondRank}) {
      Worker worker;
      worker.session = session;
      worker.group = session == kTrainer ? kTrainers : 1;
      worker.rank = session == kSecondRank ? 1 : 0;
      state_.roster.Add(worker);
    }
    state_.plan.epoch = 1;
    state_.plan.sources = {kTrainer};
    state_.plan.destinations = {kFirstRank, kSecondRank};
  }

  void SetWaiting(bool waiting) { state_.roster.Change(*state_.roster.Find(kTrainer))->waiting = waiting; }
  /// 10 ms later than what came before.
  void Received(SessionId from, const protocol::WorkerMessage& message) {
    recorder_.Received(from, message, state_, Later());
  }
  void Sent(SessionId to, const protocol::ControllerMessage& message) {
    recorder_.Sent(to, message, state_, Later());
  }
  TimePoint Later() { return now_ += std::chrono::milliseconds(10); }

  /// From the publication until both ranks serve.
  void Update(int64_t number, bool publishes = true) {
    id_.sequence += 1;
    const Version version{.run = 1, .number = number};
    if (publishes) Received(kTrainer, protocol::Published{.number = number});
    state_.updates.open.emplace();
    state_.updates.open->id = id_;
    for (const SessionId rank : {kFirstRank, kSecondRank}) Sent(rank, protocol::GrantRequest{id_, version});
    for (const SessionId rank : {kFirstRank, kSecondRank})
      Received(rank, protocol::Granted{.update = id_, .grants = {}});
    for (const uint32_t rank : {0U, 1U})
      Sent(kTrainer, protocol::Start{.update = id_, .version = {}, .grants = {{.destination = rank}}});
    for (const SessionId rank : {kFirstRank, kSecondRank})
      Received(rank,
               protocol::Ready{.update = id_, .sources = {{.source = 0, .bytes = 100, .seconds = 0.5}}});
    for (const SessionId rank : {kFirstRank, kSecondRank}) Sent(rank, protocol::Commit{id_});
    for (const SessionId rank : {kFirstRank, kSecondRank}) Received(rank, protocol::Committed{id_});
    for (const SessionId rank : {kFirstRank, kSecondRank}) Sent(rank, protocol::Serve{id_});
    for (const SessionId rank : {kFirstRank, kSecondRank}) Received(rank, protocol::Serving{id_, version});
    EXPECT_TRUE(recorder_.open());
    Sent(kTrainer, DoneWith(version));
    state_.updates.open.reset();
    recorder_.Look(state_, Later());
    EXPECT_FALSE(recorder_.open());
  }
  const Explained& last() { return *recorder_.history().back(); }

  [[nodiscard]] protocol::Done DoneWith(const Version& version) const {
    protocol::Done done;
    done.update = id_;
    done.version = version;
    done.met_policy = true;
    return done;
  }

  MachineState state_;
  UpdateRecorder recorder_{"policy"};
  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  protocol::UpdateId id_{.term = {.number = 1, .id = 7}, .epoch = 1};
};

TEST_F(Recorder, TimesAreSinceThePublication) {
  Update(1);
  const UpdateTimeline& update = last().timeline;
  EXPECT_EQ(update.model, "policy");
  EXPECT_TRUE(update.met_policy);
  ASSERT_EQ(update.sources.size(), 1U);
  EXPECT_EQ(update.sources[0].name, "trainer 0");
  EXPECT_DOUBLE_EQ(update.sources[0].published, 0);
  EXPECT_NEAR(update.opened, 0.01, 1e-9);
  ASSERT_EQ(update.ranks.size(), 2U);
  const RankTimeline& rank = update.ranks[1];
  EXPECT_EQ(rank.name, "engine e rank 1");
  ASSERT_EQ(rank.parts.size(), 1U);
  EXPECT_NEAR(rank.parts[0].asked, 0.02, 1e-9);
  EXPECT_NEAR(rank.parts[0].granted, 0.04, 1e-9);
  EXPECT_NEAR(rank.parts[0].started, 0.06, 1e-9);
  EXPECT_NEAR(rank.parts[0].ready, 0.08, 1e-9);
  EXPECT_NEAR(rank.committing, 0.10, 1e-9);
  EXPECT_NEAR(rank.committed, 0.12, 1e-9);
  EXPECT_NEAR(rank.serve, 0.14, 1e-9);
  EXPECT_NEAR(rank.serving, 0.16, 1e-9);
  EXPECT_EQ(update.bytes(), 200U);
  EXPECT_NEAR(last().seconds, 0.16, 1e-9);
}

TEST_F(Recorder, SpansThatComeLateAreAdded) {
  Update(1);
  Update(2);
  EXPECT_EQ(recorder_.TakeChanged().size(), 2U);
  EXPECT_TRUE(recorder_.TakeChanged().empty());
  Received(kTrainer, protocol::Spans{.update = {.term = id_.term, .epoch = 1, .sequence = 1},
                                     .spans = {{.kind = SpanKind::kStage, .peer = 1, .seconds = 0.01},
                                               {.kind = SpanKind::kWrite, .peer = 9, .seconds = 1}}});
  ASSERT_EQ(recorder_.history().size(), 2U);
  const auto& sendings = recorder_.history()[0]->timeline.sources[0].sendings;
  ASSERT_EQ(sendings.size(), 1U);  // There is no destination 9.
  EXPECT_EQ(sendings[0].to, "engine e rank 1");
  EXPECT_TRUE(recorder_.history()[1]->timeline.sources[0].sendings.empty());
  const Explanations changed = recorder_.TakeChanged();
  ASSERT_EQ(changed.size(), 1U);
  EXPECT_EQ(changed[0], recorder_.history()[0]);
}

TEST_F(Recorder, OrdersToAnEngineControlAndStallsAreOfTheUpdate) {
  const auto pause = protocol::EngineCommand{.order = 1, .command = protocol::Command::kPause, .version = {}};
  Sent(kControl, pause);  // Of an earlier time.
  Received(kControl, protocol::EngineCommandResult{.order = 1, .status = {}});
  Received(kTrainer, protocol::Published{.number = 5});
  Sent(kControl, protocol::EngineCommand{.order = 2, .command = protocol::Command::kPause, .version = {}});
  Received(kControl, protocol::EngineCommandResult{.order = 2, .status = {}});
  Update(5, /*publishes=*/false);
  const UpdateTimeline& update = last().timeline;
  ASSERT_EQ(update.commands.size(), 1U);
  EXPECT_NEAR(update.commands[0].asked, 0.01, 1e-9);
  EXPECT_NEAR(update.commands[0].answered, 0.02, 1e-9);
  ASSERT_FALSE(last().path.empty());
  EXPECT_EQ(last().path[1].step, PathStep::kOpen);
  EXPECT_EQ(last().path[1].costs[0].cause, Cause::kLateEngine);
}

TEST_F(Recorder, StallsCountFromThePublicationOn) {
  const auto stall = std::chrono::milliseconds(100);
  recorder_.Look(state_, Later());
  EXPECT_FALSE(recorder_.awaited());
  recorder_.Stalled(now_, now_ + stall);
  now_ += stall;
  Received(kTrainer, protocol::Published{.number = 5});
  SetWaiting(true);
  recorder_.Look(state_, Later());
  EXPECT_TRUE(recorder_.awaited());
  recorder_.Stalled(now_, now_ + stall);
  now_ += stall;
  SetWaiting(false);
  Update(5, /*publishes=*/false);
  EXPECT_FALSE(recorder_.awaited());
  const UpdateTimeline& update = last().timeline;
  ASSERT_EQ(update.stalls.size(), 1U);
  EXPECT_NEAR(update.stalls[0].begin, 0.01, 1e-9);
  EXPECT_NEAR(update.stalls[0].seconds, 0.1, 1e-9);
  Update(6);
  EXPECT_TRUE(last().timeline.stalls.empty());
}

TEST_F(Recorder, ATrainerMeasuresHowLongItWaitedForItsStart) {
  Update(1);
  Received(kTrainer, protocol::Spans{.update = id_, .spans = {{.kind = SpanKind::kGate, .seconds = 0.04}}});
  const SourceTimeline& source = last().timeline.sources[0];
  EXPECT_NEAR(source.started, 0.05, 1e-9);  // The first of two.
  EXPECT_DOUBLE_EQ(source.waited, 0.04);
  EXPECT_TRUE(source.sendings.empty());
  Received(kFirstRank, protocol::Spans{.update = id_, .spans = {{.kind = SpanKind::kGate, .seconds = 9}}});
  EXPECT_DOUBLE_EQ(last().timeline.sources[0].waited, 0.04);  // Trainers publish; ranks do not.
}

TEST_F(Recorder, AVersionThatIsHeldBeginsWhenItIsAskedFor) {
  Update(1);
  now_ += std::chrono::hours(1);
  Update(1, /*publishes=*/false);
  EXPECT_LT(last().seconds, 1);
}

TEST_F(Recorder, NoMoreThanTheLastAreKept) {
  for (size_t i = 0; i < kMostUpdates + 3; ++i) Update(static_cast<int64_t>(i));
  EXPECT_EQ(recorder_.history().size(), kMostUpdates);
  EXPECT_EQ(recorder_.history().front()->timeline.version.number, 3);
}

TEST_F(Recorder, NoMoreSpansThanTheBoundAreKept) {
  Update(1);
  protocol::Spans many{.update = id_, .spans = {}};
  many.spans.assign(kMostSpans, {.kind = SpanKind::kWrite, .peer = 0, .seconds = 1});
  Received(kTrainer, many);
  Received(kTrainer, many);
  EXPECT_EQ(last().timeline.sources[0].sendings.size(), kMostSpans);
}

TEST_F(Recorder, WhatNobodyWasAskedForIsNotHeard) {
  Received(kFirstRank, protocol::Granted{.update = id_, .grants = {}});
  Received(kFirstRank, protocol::Ready{.update = id_, .part = 3});
  Received(kFirstRank, protocol::Spans{.update = id_, .spans = {{.kind = SpanKind::kPause}}});
  Sent(kTrainer, protocol::Start{.update = id_, .version = {}, .grants = {{.destination = 77}}});
  EXPECT_TRUE(recorder_.history().empty());
  EXPECT_FALSE(recorder_.open());
}

}  // namespace
}  // namespace weightcast::control
