#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "control/rules.h"

namespace weightcast::control {

// What a rule asks of the others, as substitutes.

struct MockMembership : Membership {
  virtual ~MockMembership() = default;
  using Membership::Refuse;
  MOCK_METHOD(const Group&, GroupFor, (const protocol::Hello&), (override));
  MOCK_METHOD(void, Refuse, (const std::vector<SessionId>&, const Status&), (override));
  MOCK_METHOD(const Status&, engine_loss, (), (const, override));
};
struct MockPlanning : Planning {
  virtual ~MockPlanning() = default;
  MOCK_METHOD(PlanFacts, plan, (), (const, override));
  MOCK_METHOD(GroupFacts, Of, (GroupId), (const, override));
  MOCK_METHOD(void, MarkStale, (), (override));
  MOCK_METHOD(void, Changed, (const Worker&), (override));
  MOCK_METHOD(void, Lose, (const Worker&), (override));
  MOCK_METHOD(void, Unplan, (GroupId, bool), (override));
  MOCK_METHOD(void, ForgetGroup, (GroupId), (override));
  MOCK_METHOD(void, EndPartial, (), (override));
  MOCK_METHOD(uint32_t, PlanRepair, (std::vector<SessionId>, bool, const std::vector<GroupId>&), (override));
  MOCK_METHOD(void, Drop, (), (override));
};
struct MockRuns : Runs {
  virtual ~MockRuns() = default;
  using Runs::Check;
  MOCK_METHOD(const protocol::Run&, run, (), (const, override));
  MOCK_METHOD(Status, Check, (const protocol::Run&), (const, override));
  MOCK_METHOD(void, Join, (uint32_t, uint64_t), (override));
  MOCK_METHOD(void, TrainerJoins, (const protocol::Hello&), (override));
  MOCK_METHOD(void, RankServed, (const Worker&), (override));
};
struct MockPublications : Publications {
  virtual ~MockPublications() = default;
  MOCK_METHOD(void, EndRun, (const Status&), (override));
  MOCK_METHOD(void, Opened, (), (override));
  MOCK_METHOD(void, Reopens, (), (override));
};
struct MockCommands : Commands {
  virtual ~MockCommands() = default;
  MOCK_METHOD(Answer, Ask, (const Group&, protocol::Command, const Version&), (override));
  MOCK_METHOD(Status, Overdue, (const Group&), (const, override));
  MOCK_METHOD(Status, TimedOut, (const Group&), (override));
  MOCK_METHOD(void, Attach, (SessionId, const protocol::Hello&), (override));
};
struct MockOpening : Opening {
  virtual ~MockOpening() = default;
  MOCK_METHOD(void, ForgetFailures, (GroupId), (override));
  MOCK_METHOD(void, ForgetGroup, (GroupId), (override));
  MOCK_METHOD(void, NoteEnd, (const EngineEnd&, const Version&), (override));
  MOCK_METHOD(bool, IsGivenUp, (GroupId, const Version&), (const, override));
  MOCK_METHOD(bool, IsAtFault, (GroupId, const Version&), (const, override));
};
struct MockUpdates : Updates {
  virtual ~MockUpdates() = default;
  MOCK_METHOD(bool, open, (), (const, override));
  MOCK_METHOD(UpdateFacts, update, (), (const, override));
  MOCK_METHOD(void, Open, (NewUpdate), (override));
  MOCK_METHOD(void, OpenFromEngines, (NewUpdate), (override));
  MOCK_METHOD(void, BeginAttempt, (), (override));
  MOCK_METHOD(void, MarkStarted, (), (override));
  MOCK_METHOD(void, Abort, (const Status&, EngineStep), (override));
  MOCK_METHOD(void, Lose, (const Worker&, const Status&), (override));
  MOCK_METHOD(void, BeginAgain, (const Worker&, std::string_view), (override));
  MOCK_METHOD(bool, SwitchesTogether, (), (const, override));
};
struct MockEngines : Engines {
  virtual ~MockEngines() = default;
  MOCK_METHOD(const EngineProgress*, Of, (GroupId), (const, override));
  MOCK_METHOD(const EngineCounts&, counts, (), (const, override));
  MOCK_METHOD(std::vector<GroupId>, GroupsAt, (EngineStep), (const, override));
  MOCK_METHOD(void, Open, (const std::vector<GroupId>&, EngineStep), (override));
  MOCK_METHOD(std::vector<EngineEnd>, Close, (), (override));
  MOCK_METHOD(void, BeginGrants, (GroupId), (override));
  MOCK_METHOD(void, Advance, (), (override));
  MOCK_METHOD(void, RanksCame, (GroupId, RankStep), (override));
  MOCK_METHOD(void, CommandDone, (GroupId), (override));
  MOCK_METHOD(void, CommandFailed, (GroupId, const Status&), (override));
  MOCK_METHOD(void, Out, (GroupId, const Status&, const Worker*, SessionId), (override));
  MOCK_METHOD(void, OutUpTo, (EngineStep, const Status&), (override));
  MOCK_METHOD(void, LoseRank, (GroupId, const Status&, const Worker*), (override));
  MOCK_METHOD(void, LoseSources, (const Status&), (override));
  MOCK_METHOD(Lateness, lateness, (), (const, override));
  MOCK_METHOD(void, DropLate, (), (override));
  MOCK_METHOD(void, Withdraw, (), (override));
};
struct MockRanks : Ranks {
  virtual ~MockRanks() = default;
  MOCK_METHOD(void, Open, (const std::vector<Seat>&), (override));
  MOCK_METHOD(std::vector<Arrival>, Close, (), (override));
  MOCK_METHOD(std::optional<RankProgress>, Of, (SessionId), (const, override));
  MOCK_METHOD(std::optional<GroupId>, LackingAt, (const protocol::UpdateId&, int64_t), (const, override));
  MOCK_METHOD(bool, AllAt, (GroupId, RankStep), (const, override));
  MOCK_METHOD(bool, AnyReady, (GroupId), (const, override));
  MOCK_METHOD(const Worker*, MissingAt, (GroupId, RankStep), (const, override));
  MOCK_METHOD(bool, IsSettled, (GroupId), (const, override));
  MOCK_METHOD(void, Ask, (GroupId), (override));
  MOCK_METHOD(void, AskForPart, (GroupId, uint32_t), (override));
  MOCK_METHOD(void, Start, (const std::vector<GroupId>&), (override));
  MOCK_METHOD(void, Commit, (GroupId), (override));
  MOCK_METHOD(void, Serve, (GroupId), (override));
  MOCK_METHOD(void, Abort, (GroupId, const Status&, SessionId), (override));
  MOCK_METHOD(void, StopSenders, (GroupId), (override));
  MOCK_METHOD(void, LoseSources, (GroupId), (override));
  MOCK_METHOD(void, Renumber, (std::span<const SessionId>), (override));
  MOCK_METHOD(void, OnFailed, (const Worker&, const protocol::Failed&, const Status&), (override));
};
struct MockDeadlines : Deadlines {
  virtual ~MockDeadlines() = default;
  MOCK_METHOD(void, Begin, (GroupId), (override));
  MOCK_METHOD(void, End, (GroupId), (override));
  MOCK_METHOD(void, BeginGrants, (GroupId), (override));
  MOCK_METHOD(void, EndGrants, (GroupId), (override));
  MOCK_METHOD(bool, IsGranting, (GroupId), (const, override));
  MOCK_METHOD(bool, IsOverdue, (GroupId), (const, override));
  MOCK_METHOD(void, Close, (), (override));
  MOCK_METHOD(void, Lose, (GroupId), (override));
  MOCK_METHOD(void, ForgetGroup, (GroupId), (override));
};
struct MockRepair : Repair {
  virtual ~MockRepair() = default;
  MOCK_METHOD(void, Open, (Holders), (override));
  MOCK_METHOD(void, Close, (), (override));
  MOCK_METHOD(bool, IsPlanned, (), (const, override));
  MOCK_METHOD(void, PlanFailed, (const Status&), (override));
  MOCK_METHOD(void, LoseSource, (const Worker&, const Status&, std::optional<GroupId>), (override));
  MOCK_METHOD(void, EngineOut, (GroupId, const Status&), (override));
  MOCK_METHOD(void, Advance, (), (override));
  MOCK_METHOD(bool, OpenFromPeers, (), (override));
  MOCK_METHOD(bool, HasNewcomers, (), (const, override));
};

/// One rule alone: a roster, recorded actions, and substitutes for the other rules.
class RuleBench : public ::testing::Test {
 protected:
  RuleBench() {
    using ::testing::Return;
    using ::testing::ReturnRef;
    config.term = {.number = 1, .id = 77};
    ON_CALL(runs, run).WillByDefault(ReturnRef(run));
    ON_CALL(membership, engine_loss).WillByDefault(ReturnRef(engine_loss));
    ON_CALL(engines, counts).WillByDefault(ReturnRef(counts));
    ON_CALL(planning, plan).WillByDefault([this] { return plan; });
    ON_CALL(updates, open).WillByDefault([this] { return open; });
    ON_CALL(updates, update).WillByDefault([this] {
      return UpdateFacts{.id = id, .version = version, .fresh = fresh, .trainers = trainers};
    });
  }

  /// A worker that has registered, of a group of `world_size`.
  SessionId Add(const std::string& engine, uint32_t rank, uint32_t world_size = 1) {
    const Group* known = roster.Named(engine);
    const Group& group = known == nullptr ? roster.AddGroup(engine) : *known;
    if (group.members == 0) roster.SetWorldSize(group, world_size);
    Worker worker;
    worker.session = ++last_session;
    worker.group = group.id;
    worker.rank = rank;
    worker.incarnation = worker.session;
    worker.registered = worker.landed = true;
    roster.Add(worker);
    return worker.session;
  }
  [[nodiscard]] const Worker& Of(SessionId session) const { return *roster.Find(session); }
  [[nodiscard]] const Group& GroupOf(const std::string& engine) const { return *roster.Named(engine); }
  /// The messages of this type, in order.
  template <typename Message>
  [[nodiscard]] std::vector<Message> Sent() const {
    std::vector<Message> found;
    for (const Action& action : actions) {
      const auto* send = std::get_if<Send>(&action);
      const auto* send_all = std::get_if<SendAll>(&action);
      const protocol::ControllerMessage* message = send != nullptr       ? &send->message
                                                   : send_all != nullptr ? &send_all->message
                                                                         : nullptr;
      if (message == nullptr) continue;
      if (const auto* right = std::get_if<Message>(message)) found.push_back(*right);
    }
    return found;
  }
  template <typename Kind>
  [[nodiscard]] std::vector<Kind> Done() const {
    std::vector<Kind> found;
    for (const Action& action : actions)
      if (const auto* right = std::get_if<Kind>(&action)) found.push_back(*right);
    return found;
  }

  MachineConfig config;
  Roster roster;
  Actions actions;
  Outbox out{actions};
  Status last_error;
  SessionId last_session = 0;

  // What the substitutes say.
  protocol::Run run{.number = 1, .origin = 77};
  Status engine_loss;
  PlanFacts plan;
  EngineCounts counts;
  bool open = false;
  protocol::UpdateId id{.term = {.number = 1, .id = 77}, .epoch = 1, .sequence = 1, .attempt = 0};
  Version version{.run = 1, .number = 5, .origin = 77};
  bool fresh = true;
  std::vector<SessionId> trainers;

  ::testing::NiceMock<MockMembership> membership;
  ::testing::NiceMock<MockRuns> runs;
  ::testing::NiceMock<MockPlanning> planning;
  ::testing::NiceMock<MockPublications> publications;
  ::testing::NiceMock<MockCommands> commands;
  ::testing::NiceMock<MockOpening> opening;
  ::testing::NiceMock<MockUpdates> updates;
  ::testing::NiceMock<MockEngines> engines;
  ::testing::NiceMock<MockRanks> ranks;
  ::testing::NiceMock<MockDeadlines> deadlines;
  ::testing::NiceMock<MockRepair> repair;
  Context context{.config = config,
                  .roster = roster,
                  .out = out,
                  .last_error = last_error,
                  .membership = &membership,
                  .runs = &runs,
                  .planning = &planning,
                  .publications = &publications,
                  .commands = &commands,
                  .opening = &opening,
                  .updates = &updates,
                  .engines = &engines,
                  .ranks = &ranks,
                  .deadlines = &deadlines,
                  .repair = &repair};
};

}  // namespace weightcast::control
