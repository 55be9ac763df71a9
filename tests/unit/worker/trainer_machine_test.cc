#include "worker/trainer_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <set>

#include "unit/worker/updates.h"

namespace weightcast::worker {
namespace {

StartOrder StartOf(uint64_t sequence, int64_t number, uint32_t destination) {
  return {.update = Update(sequence),
          .version = {1, number},
          .destination = destination,
          .slot = 1,
          .grant = 100 + sequence};
}

struct Trainer {
  TrainerState state;
  std::vector<TrainerAction> actions;

  Trainer() {
    Do(protocol::Welcome{.term = kTerm, .run = {.number = 1}, .lease_seconds = 5});
    Do(TrainerRegisterCalled{});
    Do(TrainerPlanArrived{.epoch = 1, .run = {.number = 1}});
    Do(SendPlanReady{1});
  }
  void Do(const TrainerEvent& event) { actions = Advance(state, event); }
  template <typename T>
  std::optional<T> Sent() const {
    for (const auto& action : actions)
      if (const auto* send = std::get_if<SendMessage>(&action))
        if (const auto* message = std::get_if<T>(&send->message)) return *message;
    return std::nullopt;
  }
  template <typename T>
  std::optional<T> Action() const {
    for (const auto& action : actions)
      if (const auto* found = std::get_if<T>(&action)) return *found;
    return std::nullopt;
  }
  void Finish(uint64_t sequence, uint32_t destination) {
    Do(SendEnded{.update = Update(sequence), .destination = destination, .status = {}});
    Do(SendFenced{Update(sequence), destination});
  }
  protocol::Done DoneOf(uint64_t sequence, int64_t number, bool met = true) {
    protocol::Done done;
    done.update = Update(sequence);
    done.version = {1, number};
    done.met_policy = met;
    if (!met) done.reason = kDead;
    return done;
  }
};

TEST(TrainerMachine, UpdateGoesThroughEveryStep) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3});
  EXPECT_EQ(trainer.Sent<protocol::Published>()->number, 3);
  EXPECT_EQ(trainer.Action<AnswerTrainer>()->version, (Version{1, 3}));
  trainer.Do(StartOf(1, 3, 0));
  EXPECT_TRUE(trainer.Action<BeginSending>());
  trainer.Do(StartOf(1, 3, 1));
  trainer.Do(SendEnded{.update = Update(1), .destination = 0, .status = {}});
  EXPECT_TRUE(trainer.actions.empty()) << "the receiver says what has come";
  trainer.Do(SendFenced{Update(1), 0});
  trainer.Do(protocol::Release{Update(1), {1, 3}});
  EXPECT_FALSE(trainer.Action<FreeSources>()) << "a transfer is still reading";
  trainer.Finish(1, 1);
  ASSERT_TRUE(trainer.Action<FreeSources>());
  EXPECT_TRUE(trainer.Action<FreeSources>()->status.ok());
  trainer.Do(trainer.DoneOf(1, 3));
  ASSERT_TRUE(trainer.Action<FinishUpdate>());
  EXPECT_TRUE(trainer.Action<FinishUpdate>()->done->met_policy);
}

TEST(TrainerMachine, NumbersRise) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3});
  trainer.Do(PublishCalled{.number = 3});
  EXPECT_EQ(trainer.Action<AnswerTrainer>()->status.code(), Code::kInvalidArgument);
  trainer.Do(PublishCalled{.number = 4});
  EXPECT_TRUE(trainer.Action<AnswerTrainer>()->status.ok());
}

TEST(TrainerMachine, AbortFreesSourcesOnlyWhenNobodyReadsThem) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3});
  trainer.Do(StartOf(1, 3, 0));
  trainer.Do(protocol::Abort{Update(1), kDead, {1, 3}});
  EXPECT_TRUE(trainer.Action<StopSending>());
  EXPECT_FALSE(trainer.Action<FreeSources>());
  trainer.Do(SendEnded{.update = Update(1), .destination = 0, .status = {Code::kCancelled, "stopped"}});
  EXPECT_TRUE(trainer.actions.empty()) << "nothing is said of what was stopped";
  trainer.Do(SendFenced{Update(1), 0});
  EXPECT_EQ(trainer.Action<FreeSources>()->status, kDead);
  trainer.Do(trainer.DoneOf(1, 3, false));
  EXPECT_EQ(trainer.Action<FinishUpdate>()->status, kDead);
}

TEST(TrainerMachine, FailureNamesThePathOnlyIfItIsThePaths) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3});
  trainer.Do(StartOf(1, 3, 5));
  trainer.Do(StartOf(1, 3, 6));
  trainer.Do(SendEnded{.update = Update(1), .destination = 5, .status = kDead, .path = true});
  EXPECT_EQ(trainer.Sent<protocol::Failed>()->destination, 5);
  trainer.Do(SendEnded{.update = Update(1), .destination = 6, .status = {Code::kExhausted, "x"}});
  EXPECT_EQ(trainer.Sent<protocol::Failed>()->destination, -1);
}

TEST(TrainerMachine, StoppedDestinationIsSilentAndTheOthersGoOn) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3});
  trainer.Do(StartOf(1, 3, 0));
  trainer.Do(StartOf(1, 3, 1));
  trainer.Do(protocol::Stop{Update(1), 0});
  EXPECT_EQ(trainer.Action<StopSending>()->destination, 0U);
  trainer.Do(SendEnded{.update = Update(1), .destination = 0, .status = kDead, .path = true});
  EXPECT_FALSE(trainer.Sent<protocol::Failed>());
  trainer.Do(SendFenced{Update(1), 0});
  trainer.Finish(1, 1);
  trainer.Do(protocol::Release{Update(1), {1, 3}});
  EXPECT_TRUE(trainer.Action<FreeSources>()->status.ok());
}

TEST(TrainerMachine, HeldVersionIsSentAgainUntilTheNextPublish) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3, .hold = true});
  trainer.Do(StartOf(1, 3, 0));
  trainer.Finish(1, 0);
  trainer.Do(protocol::Release{Update(1), {1, 3}});
  trainer.Do(trainer.DoneOf(1, 3));
  trainer.Do(StartOf(2, 3, 1));
  EXPECT_TRUE(trainer.Action<BeginSending>());
  EXPECT_TRUE(trainer.Action<HoldSources>());
  trainer.Do(CancelCalled{3});
  EXPECT_TRUE(trainer.Action<StopSending>());
  trainer.Do(SendFenced{Update(2), 1});
  EXPECT_TRUE(trainer.Action<FreeSources>());
  trainer.Do(StartOf(3, 3, 1));
  EXPECT_TRUE(trainer.Sent<protocol::Failed>()) << "the hold has ended";
}

TEST(TrainerMachine, ACancelThatANewControllerHasNotHeardIsSaidAgain) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3});
  trainer.Do(CancelCalled{3});
  EXPECT_TRUE(trainer.Sent<protocol::Cancel>());
  trainer.Do(protocol::Welcome{.term = {.number = 2}, .run = {.number = 1}});
  EXPECT_TRUE(trainer.Sent<protocol::Published>());
  ASSERT_TRUE(trainer.Sent<protocol::Cancel>());
  EXPECT_EQ(trainer.Sent<protocol::Cancel>()->number, 3);
}

TEST(TrainerMachine, TheEndOfARefillElsewhereLeavesTheNextVersionAlone) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3, .hold = true});
  trainer.Do(StartOf(1, 3, 0));
  trainer.Finish(1, 0);
  trainer.Do(protocol::Release{Update(1), {1, 3}});
  trainer.Do(trainer.DoneOf(1, 3));
  trainer.Do(PublishCalled{.number = 4});
  // A late engine got version 3, from others.
  trainer.Do(protocol::Release{Update(2), {1, 3}});
  EXPECT_TRUE(trainer.actions.empty());
  trainer.Do(protocol::Abort{Update(3), kDead, {1, 3}});
  EXPECT_FALSE(trainer.Action<FreeSources>());
  trainer.Do(protocol::Release{Update(4), {1, 4}});
  EXPECT_EQ(trainer.Action<FreeSources>()->number, 4);
}

TEST(TrainerMachine, AStartAfterRegisteringAnewIsAnswered) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3, .hold = true});
  trainer.Do(StartOf(1, 3, 0));
  trainer.Finish(1, 0);
  trainer.Do(protocol::Release{Update(1), {1, 3}});
  trainer.Do(trainer.DoneOf(1, 3));
  trainer.Do(TrainerRegisterCalled{});
  trainer.Do(StartOf(2, 3, 1));
  ASSERT_TRUE(trainer.Sent<protocol::Failed>());
  EXPECT_EQ(trainer.Sent<protocol::Failed>()->update, Update(2));
  EXPECT_THAT(trainer.Sent<protocol::Failed>()->reason.message(), testing::HasSubstr("registered again"));
  EXPECT_FALSE(trainer.Action<BeginSending>());
}

TEST(TrainerMachine, VersionsThatWereLetGoAreNotSent) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3});
  trainer.Do(StartOf(1, 3, 0));
  trainer.Finish(1, 0);
  trainer.Do(protocol::Release{Update(1), {1, 3}});
  trainer.Do(StartOf(2, 3, 1));
  EXPECT_TRUE(trainer.Sent<protocol::Failed>());
  trainer.Do(StartOf(3, 9, 1));
  EXPECT_TRUE(trainer.Sent<protocol::Failed>());
}

TEST(TrainerMachine, WhatALossMeansTheControllerSays) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3});
  trainer.Do(protocol::Lost{{protocol::Role::kInference, "e", 0}, kDead});
  EXPECT_TRUE(trainer.actions.empty());
  trainer.Do(protocol::Lost{{protocol::Role::kTrainer, "", 1}, kDead});
  EXPECT_TRUE(trainer.actions.empty()) << "others may have its bytes";
  EXPECT_EQ(trainer.state.last_error, kDead);
}

TEST(TrainerMachine, SupersededVersionSaysSo) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3});
  trainer.Do(PublishCalled{.number = 4});
  trainer.Do(protocol::Superseded{{1, 3}});
  EXPECT_EQ(trainer.Action<FinishUpdate>()->number, 3);
  EXPECT_THAT(trainer.Action<FinishUpdate>()->status.message(), testing::HasSubstr("superseded"));
}

TEST(TrainerMachine, TrainerWithNothingToSendIsReleasedToo) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3});
  trainer.Do(protocol::Release{Update(1), {1, 3}});
  EXPECT_TRUE(trainer.Action<FreeSources>()->status.ok());
  trainer.Do(trainer.DoneOf(1, 3));
  EXPECT_TRUE(trainer.Action<FinishUpdate>());
}

TEST(TrainerMachine, NewSessionOffersAgainWhatIsStillUnchanged) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3});
  trainer.Do(StartOf(1, 3, 0));
  trainer.Do(protocol::Welcome{.term = {.number = 2, .id = 1}, .run = {.number = 1}, .lease_seconds = 5});
  EXPECT_TRUE(trainer.Action<StopSending>());
  EXPECT_TRUE(trainer.Action<SendRegistration>());
  EXPECT_EQ(trainer.Sent<protocol::Published>()->number, 3);
  trainer.Do(protocol::Welcome{.term = {.number = 3, .id = 1}, .run = {.number = 2}, .lease_seconds = 5});
  EXPECT_EQ(trainer.Sent<protocol::Published>()->run.number, 1U) << "its bytes are what they were";
  trainer.Do(PublishCalled{.number = 4});
  EXPECT_EQ(trainer.Sent<protocol::Published>()->run.number, 2U);

  Trainer released;
  released.Do(PublishCalled{.number = 3});
  released.Do(StartOf(1, 3, 0));
  released.Finish(1, 0);
  released.Do(protocol::Release{Update(1), {1, 3}});
  released.Do(protocol::Welcome{.term = {.number = 2, .id = 1}, .run = {.number = 1}, .lease_seconds = 5});
  EXPECT_FALSE(released.Sent<protocol::Published>()) << "its bytes may have changed";
  EXPECT_EQ(released.Action<FinishUpdate>()->status.code(), Code::kUnavailable);
}

TEST(TrainerMachine, SessionEndEndsAllUpdates) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3});
  trainer.Do(StartOf(1, 3, 0));
  const Status end(Code::kTimedOut, "no controller");
  trainer.Do(SessionEnded{end});
  EXPECT_EQ(trainer.Action<FinishUpdate>()->status, end);
  EXPECT_TRUE(trainer.Action<StopSending>());
  trainer.Do(SendFenced{Update(1), 0});
  EXPECT_EQ(trainer.Action<FreeSources>()->status, end);
  trainer.Do(PublishCalled{.number = 4});
  EXPECT_EQ(trainer.Action<AnswerTrainer>()->status, end);
}

TEST(TrainerMachine, WhoWaitsInVainForAControllerEndsTheUpdateHere) {
  const Status away(Code::kUnavailable, "no controller for 10 s");
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3});
  trainer.Do(StartOf(1, 3, 0));
  trainer.Do(NoController{3, away});
  EXPECT_EQ(trainer.Action<FinishUpdate>()->status, away);
  EXPECT_TRUE(trainer.Action<StopSending>());
  EXPECT_TRUE(trainer.Sent<protocol::Cancel>()) << "if it is the same controller after all";
  EXPECT_FALSE(trainer.Action<FreeSources>()) << "somebody still reads them";
  trainer.Do(SendFenced{Update(1), 0});
  EXPECT_EQ(trainer.Action<FreeSources>()->status, away);
  trainer.Do(protocol::Welcome{.term = {.number = 2, .id = 1}, .run = {.number = 1}, .lease_seconds = 5});
  EXPECT_FALSE(trainer.Sent<protocol::Published>()) << "its bytes may have changed";
  trainer.Do(PublishCalled{.number = 4});
  EXPECT_TRUE(trainer.Action<AnswerTrainer>()->status.ok());
  EXPECT_EQ(trainer.Sent<protocol::Published>()->number, 4);

  Trainer held;
  held.Do(PublishCalled{.number = 3, .hold = true});
  held.Do(NoController{3, away});
  EXPECT_EQ(held.Action<FinishUpdate>()->status, away);
  EXPECT_FALSE(held.Sent<protocol::Cancel>());
  held.Do(protocol::Welcome{.term = {.number = 2, .id = 1}, .run = {.number = 1}, .lease_seconds = 5});
  EXPECT_EQ(held.Sent<protocol::Published>()->number, 3) << "its bytes are what they were";
}

TEST(TrainerMachine, RegisterWaitsForTheSources) {
  Trainer trainer;
  trainer.Do(PublishCalled{.number = 3});
  trainer.Do(TrainerRegisterCalled{});
  EXPECT_EQ(trainer.Action<AnswerTrainer>()->status.code(), Code::kUnavailable);
  trainer.Do(trainer.DoneOf(1, 3));
  trainer.Do(TrainerRegisterCalled{});
  EXPECT_TRUE(trainer.Action<AnswerTrainer>()->status.ok());
}

/// Random events; what must hold after each.
class RandomTrainer {
 public:
  explicit RandomTrainer(uint64_t seed) : random_(seed) {
    Dispatch(protocol::Welcome{.term = kTerm, .run = {.number = 1}, .lease_seconds = 5});
    Dispatch(TrainerRegisterCalled{});
  }
  void Step() {
    switch (Pick(15)) {
      case 0:
        return Dispatch(TrainerPlanArrived{.epoch = ++epoch_, .run = {.number = 1}});
      case 1:
        return Dispatch(SendPlanReady{epoch_});
      case 2:
      case 3:
        return Dispatch(PublishCalled{.number = ++number_, .hold = Pick(2) == 0});
      case 4:
      case 5:
      case 6: {
        auto start = StartOf(sequence_, number_ - Pick(2), destination_++);
        start.update.epoch = epoch_;
        return Dispatch(start);
      }
      case 7:
        ++sequence_;
        return Dispatch(protocol::Release{Update(sequence_ - 1, epoch_), {1, number_ - Pick(2)}});
      case 8:
        ++sequence_;
        return Dispatch(protocol::Abort{Update(sequence_ - 1, epoch_), kDead, {1, number_ - Pick(2)}});
      case 9: {
        protocol::Done done;
        done.update = Update(sequence_, epoch_);
        done.version = {1, number_ - Pick(2)};
        done.met_policy = Pick(2) == 0;
        if (!done.met_policy) done.reason = kDead;
        return Dispatch(done);
      }
      case 10:
        return Dispatch(protocol::Lost{{protocol::Role::kTrainer, "", 1}, kDead});
      case 11:
        return Dispatch(CancelCalled{number_});
      case 12:
        return Dispatch(NoController{number_ - Pick(2), kDead});
      default:
        return Fence();
    }
  }
  void End() {
    Dispatch(SessionEnded{{Code::kTimedOut, "no controller"}});
    while (!sending_.empty()) Fence();
    for (int64_t number = 1; number <= number_; ++number) {
      EXPECT_TRUE(freed_.contains(number)) << "WaitSources hangs";
      EXPECT_TRUE(finished_.contains(number)) << "Wait hangs";
    }
  }

 private:
  int Pick(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  void Fence() {
    if (sending_.empty()) return;
    const auto [key, number] = *sending_.begin();
    if (Pick(2) == 0) {
      const Status status = Pick(3) == 0 ? kDead : Status::Ok();
      Dispatch(SendEnded{.update = key.first, .destination = key.second, .status = status, .path = true});
    }
    sending_.erase(sending_.begin());
    Dispatch(SendFenced{key.first, key.second});
  }
  void Dispatch(const TrainerEvent& event) {
    for (const auto& action : Advance(state_, event)) std::visit([&](const auto& a) { Execute(a); }, action);
  }
  template <typename T>
  void Execute(const T&) {}
  void Execute(const BeginSending& begin) {
    const int64_t number = begin.start.version.number;
    sending_[{begin.start.update, begin.start.destination}] = number;
    EXPECT_TRUE(!freed_.contains(number) || held_.contains(number)) << "sends what may have changed";
  }
  void Execute(const SendMessage& send) {
    const auto* published = std::get_if<protocol::Published>(&send.message);
    if (published == nullptr) return;
    held_.clear();
    if (published->hold) held_.insert(published->number);
  }
  void Execute(const FreeSources& free) {
    for (const auto& [key, number] : sending_) EXPECT_NE(number, free.number) << "freed while being read";
    freed_.insert(free.number);
  }
  void Execute(const FinishUpdate& finish) {
    EXPECT_TRUE(finished_.insert(finish.number).second) << "an outcome too many";
  }

  std::mt19937_64 random_;
  TrainerState state_;
  uint32_t epoch_ = 1;
  uint64_t sequence_ = 1;
  int64_t number_ = 0;
  uint32_t destination_ = 0;
  std::map<std::pair<protocol::UpdateId, uint32_t>, int64_t> sending_;
  std::set<int64_t> freed_, finished_, held_;
};

TEST(TrainerMachine, FreesNothingTooEarlyWhateverHappens) {
  for (uint64_t seed = 0; seed < 400 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    RandomTrainer trainer(seed);
    for (int step = 0; step < 300 && !testing::Test::HasFailure(); ++step) trainer.Step();
    trainer.End();
  }
}

}  // namespace
}  // namespace weightcast::worker
