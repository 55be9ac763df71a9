#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/strings.h"
#include "control/controller_machine.h"
#include "machine_fingerprint.h"
#include "unit/control/simulated_process.h"

namespace weightcast::control {

/// Well-behaved workers around one controller machine, with queues instead of a network and with promises
/// checked at every action. Timers fire when a test says so, or when nothing else can happen.
class Simulator {
 public:
  using Process = SimulatedProcess;
  struct Write {
    SessionId from = 0;
    SessionId to = 0;
    uint64_t grant = 0;
    protocol::UpdateId update;
    uint32_t destination = 0;
  };

  MachineConfig config;
  MachineState state = InitialState();
  std::map<SessionId, Process> processes;
  std::map<TimerId, Duration> timers;
  std::vector<Write> writes;
  std::optional<MakePlan> planning;
  std::map<uint32_t, MakePlan> plans;
  SessionId last_session = 0;
  uint64_t last_id = 0;
  bool sharded = true;  ///< Only all trainers together have every byte.
  Status plan_error;    ///< Given to the next plan, with `plan_concerned`.
  std::vector<SessionId> plan_concerned;
  std::vector<std::string> log;
  int kept = 0;  ///< Aborts that cost a rank in place nothing although it had granted.
  /// Sees every step, before its actions are carried out.
  std::function<void(const MachineState& before, const Event& event, const MachineState& after)> on_step;
  std::set<std::pair<protocol::UpdateId, SessionId>> started;  ///< Ranks whose grants a source was told of.

  Simulator() { config.term = {.number = 1, .id = 77}; }

  // --- What tests do ---

  SessionId Join(protocol::Hello hello, protocol::Landing landing = protocol::Landing::kInPlace) {
    hello.job = hello.job.empty() ? "default" : hello.job;
    hello.model = "policy";
    if (hello.incarnation == 0) hello.incarnation = ++last_id;
    const SessionId session = ++last_session;
    Process process;
    process.session = session;
    process.hello = hello;
    process.landing = landing;
    process.version = hello.version;
    process.state = hello.state;
    processes[session] = process;
    Do(Attached{session, hello});
    return session;
  }
  SessionId JoinTrainer(uint32_t rank, uint32_t world_size) {
    protocol::Hello hello;
    hello.name = {.role = protocol::Role::kTrainer, .engine = "", .rank = rank};
    hello.world_size = world_size;
    return Join(hello);
  }
  SessionId JoinRank(const std::string& engine, uint32_t rank, uint32_t world_size,
                     protocol::Landing landing = protocol::Landing::kInPlace) {
    return Join(RankHello(engine, rank, world_size), landing);
  }
  SessionId JoinControl(const std::string& engine) {
    protocol::Hello hello;
    hello.name = {.role = protocol::Role::kControl, .engine = engine, .rank = 0};
    hello.world_size = 1;
    return Join(hello);
  }
  void Publish(SessionId trainer, int64_t number, bool hold = false) {
    Process& process = processes[trainer];
    process.published[number] = false;
    process.outbox.push_back(protocol::Published{
        .number = number, .run = process.run.number != 0 ? process.run : state.runs.run, .hold = hold});
  }
  void PublishAll(int64_t number, bool hold = false) {
    for (auto& [session, process] : processes)
      if (IsTrainer(process) && Lives(process)) Publish(session, number, hold);
  }
  /// A rank that is in no update, or has not granted, tells its tensors again.
  void RegisterAnew(SessionId session) {
    Process& process = processes[session];
    process.asked = false;
    process.epoch = 0;
    if (process.state == protocol::EngineState::kSuspended) process.state = protocol::EngineState::kJoining;
    process.spare = {};  // A new one.
    process.SayRegister();
  }
  /// A rank that is in no update, or has not granted, falls asleep; RegisterAnew wakes it.
  void Suspend(SessionId session) {
    Process& process = processes[session];
    process.asked = false;
    process.epoch = 0;
    process.version = {};
    process.state = protocol::EngineState::kSuspended;
    process.outbox.push_back(protocol::Suspended{});
  }
  /// A rank that was asked and had not granted does so.
  void GrantLate(SessionId session) {
    Process& process = processes[session];
    process.grants = true;
    if (process.asked && !process.granted)
      Hear(process, protocol::GrantRequest{.update = *process.update, .version = process.next});
  }
  /// A control that has been asked for something answers.
  void CommandLate(SessionId session) {
    Process& control = processes[session];
    control.commands = true;
    for (const protocol::EngineCommand& order : std::exchange(control.orders, {})) Hear(control, order);
  }
  /// A rank that was told to abort and had not fenced does so.
  void FenceLate(SessionId session) {
    Process& process = processes[session];
    process.fences = true;
    if (process.closed)
      process.outbox.push_back(protocol::Aborted{
          .update = *process.closed, .lost = process.closed_lost, .landed = process.Landed()});
  }
  /// The process dies; the controller sees its stream break.
  void Kill(SessionId session) {
    Process& process = processes[session];
    process.alive = false;
    process.inbox.clear();
    process.outbox.clear();
    if (process.linked && Known(session)) Do(StreamBroken{session});
    process.linked = false;
  }
  void LeaseOut(SessionId session) {
    if (Known(session)) Do(Gone{session, {Code::kPeerDead, "missed heartbeats for 5 s; declared dead"}});
  }
  void KillAndNotice(SessionId session) {
    Kill(session);
    LeaseOut(session);
  }
  void Fire(TimerKind kind, GroupId group = 0) {
    const TimerId id{kind, group};
    ASSERT_TRUE(timers.contains(id)) << "timer is not armed";
    timers.erase(id);
    Do(TimerFired{id});
  }
  [[nodiscard]] bool Armed(TimerKind kind, GroupId group = 0) const { return timers.contains({kind, group}); }
  [[nodiscard]] GroupId GroupOf(const std::string& engine) const {
    const Group* group = state.roster.Named(engine);
    return group == nullptr ? 0 : group->id;
  }

  /// Delivers all there is, in order of sessions, and fires the timer before plans; no other.
  void Settle() {
    for (int i = 0; i < 100000; ++i) {
      if (StepOne(nullptr)) continue;
      if (!Armed(TimerKind::kPlan)) return;
      Fire(TimerKind::kPlan);
    }
    FAIL() << "does not settle";
  }
  /// One random delivery; false when there is nothing to deliver.
  bool StepRandom(std::mt19937& random) { return StepOne(&random); }

  /// Everything that can still happen, timers last, until nothing is left.
  void RunOut() {
    for (int i = 0; i < 200000; ++i) {
      if (StepOne(nullptr)) continue;
      if (NoticeOneDead()) continue;
      if (timers.empty()) return;
      const TimerId first = timers.begin()->first;
      // A group's join timer is by far the longest: others first.
      const auto other = std::find_if(timers.begin(), timers.end(),
                                      [](const auto& timer) { return timer.first.kind != TimerKind::kJoin; });
      const TimerId id = other == timers.end() ? first : other->first;
      Fire(id.kind, id.group);
    }
    std::string last;
    for (size_t i = log.size() < 30 ? 0 : log.size() - 30; i < log.size(); ++i) last += log[i] + "\n";
    FAIL() << "never comes to an end; the last steps:\n" << last;
  }

  [[nodiscard]] Version Served(SessionId session) const { return processes.at(session).version; }
  [[nodiscard]] protocol::EngineState StateOf(SessionId session) const { return processes.at(session).state; }
  static bool IsTrainer(const Process& process) { return process.IsTrainer(); }
  static bool IsControl(const Process& process) {
    return process.hello.name.role == protocol::Role::kControl;
  }
  static bool Lives(const Process& process) { return process.alive && !process.refused; }
  [[nodiscard]] bool Known(SessionId session) const {
    return state.roster.Find(session) != nullptr || state.roster.ControlledBy(session) != nullptr;
  }

  void Do(const Event& event) {
    const MachineState before = state;
    Actions actions;
    Step(config, state, event, actions);
    if (on_step) on_step(before, event, state);
    // A pure function: the same again gives the same.
    MachineState again = before;
    Actions same;
    Step(config, again, event, same);
    EXPECT_TRUE(again == state);
    EXPECT_EQ(Fingerprint(again), Fingerprint(state));
    EXPECT_EQ(same.size(), actions.size());
    if (before == state) {
      EXPECT_EQ(Fingerprint(before), Fingerprint(state));
    }
    for (Action& action : actions) std::visit([&](auto& what) { Apply(what); }, action);
    CheckState();
  }

 private:
  // --- Actions, and the promises ---

  void Apply(Send action) {
    const auto found = processes.find(action.to);
    ASSERT_NE(found, processes.end());
    Process& to = found->second;
    EXPECT_FALSE(to.refused) << "a message after the session's end: " << protocol::ToString(to.hello.name);
    std::visit([&](const auto& message) { Check(to, message); }, action.message);
    if (to.alive) to.inbox.push_back(std::move(action.message));
  }
  void Apply(SendAll& action) {
    for (const SessionId to : action.to) Apply(Send{to, action.message});
  }
  void Apply(Refuse& action) {
    Process& process = processes.at(action.session);
    EXPECT_FALSE(process.refused);
    process.refused = true;
    process.refusal = action.reason;
    EXPECT_FALSE(action.reason.ok());
    Close(process);
  }
  void Apply(Forget& action) {
    Process& process = processes.at(action.session);
    process.refused = true;
    Close(process);
  }
  void Apply(MakePlan& action) {
    EXPECT_FALSE(planning.has_value());
    planning = action;
    plans[action.epoch] = action;
  }
  void Apply(HandOut& action) {
    const MakePlan& plan = plans.at(action.epoch);
    for (const SessionId session : plan.sources) {
      EXPECT_EQ(IsTrainer(processes.at(session)), !plan.from_engines);
      Deliver(session, action.epoch, plan.from_engines);
    }
    for (const auto& engine : plan.engines) {
      for (const SessionId session : engine) {
        processes.at(session).sources = static_cast<uint32_t>(plan.sources.size());
        Deliver(session, action.epoch, false);
      }
    }
  }
  void Apply(SetTimer& action) {
    EXPECT_GT(action.after.count(), 0);
    timers[action.timer] = action.after;
  }
  void Apply(CancelTimer& action) { timers.erase(action.timer); }
  void Apply(Note& action) { log.push_back(action.text); }

  void Deliver(SessionId session, uint32_t epoch, bool gives) {
    Process& process = processes.at(session);
    EXPECT_FALSE(process.refused);
    protocol::Plan plan;
    plan.epoch = epoch;
    plan.run = state.runs.run;
    plan.gives = gives;
    if (process.alive) process.inbox.push_back(plan);
  }
  static void Close(Process& process) {
    process.inbox.clear();
    process.outbox.clear();
    process.open.clear();
  }

  template <typename Message>
  void Check(Process&, const Message&) {}
  void Check(Process& to, const protocol::Start& message) {
    EXPECT_FALSE(to.over.contains(message.update)) << "Start after the end";
    const std::vector<SessionId> destinations = DestinationsOf(plans.at(message.update.epoch));
    for (const protocol::DestinationGrant& grant : message.grants)
      CheckStarted(message, processes.at(destinations.at(grant.destination)));
  }
  void CheckStarted(const protocol::Start& message, const Process& target) {
    EXPECT_TRUE(target.granted || !target.alive || target.refused) << "Start without a grant";
    started.emplace(message.update, target.session);
    ForRanks(message.update, [&](const Process& rank, const Target& part) {
      const bool concerned = config.together && state.updates.open->fresh && message.part == 0
                                 ? part.step != EngineStep::kOut
                                 : rank.hello.name.engine == target.hello.name.engine;
      if (concerned) {
        EXPECT_TRUE(rank.granted || !rank.alive) << "Start before all have granted";
      }
    });
  }
  void Check(Process& to, const protocol::Stop& message) { EXPECT_FALSE(to.over.contains(message.update)); }
  void Check(Process& to, const protocol::Release& message) {
    EXPECT_FALSE(to.over.contains(message.update));
    if (!state.updates.open || state.updates.open->id != message.update)
      return;  // Over: peer sources are let go.
    ForRanks(message.update, [&](const Process& rank, const Target& target) {
      if (target.step != EngineStep::kOut) {
        EXPECT_TRUE(rank.ready || !rank.alive) << "Release before Ready";
      }
    });
  }
  void Check(Process& to, const protocol::Abort& message) {
    if (started.contains({message.update, to.session})) {
      EXPECT_TRUE(message.started) << "an engine that is written to takes itself for whole";
    }
    EXPECT_FALSE(to.over.contains(message.update)) << "Abort after the end";
    if (!message.reason.ok()) to.over.insert(message.update);  // Otherwise it may be told later why.
  }
  void Check(Process& to, const protocol::Done& message) {
    if (message.update.sequence != 0) to.over.insert(message.update);
  }
  void Check(Process& to, const protocol::GrantRequest& message) {
    const bool open = to.update.has_value() && to.asked && to.alive && !to.committed && Unfinished(to);
    EXPECT_TRUE(!open || (message.part == to.part + 1 && to.ready))
        << "a second grant is asked for while one is open";
    ForRanks(message.update, [&](const Process& rank, const Target&) {
      const bool own = message.part > 0 && rank.hello.name.engine == to.hello.name.engine;
      EXPECT_TRUE(!own || rank.part == message.part || rank.ready) << "before all have the part before";
    });
    EXPECT_EQ(message.update.epoch, state.plan.epoch);
    EXPECT_EQ(state.plan.phase, PlanPhase::kPrepared);
    if (!InPlace(to)) return;
    if (const Process* control = ControlOf(to)) {
      EXPECT_TRUE(control->paused) << "a grant before the engine has paused";
    }
  }
  static bool InPlace(const Process& rank) { return rank.landing == protocol::Landing::kInPlace; }
  /// Nothing in an engine that has one goes on without it.
  const Process* ControlOf(const Process& rank) {
    for (const Group& group : state.roster.groups()) {
      if (group.name != rank.hello.name.engine || !group.controlled) continue;
      EXPECT_NE(group.control.session, 0U) << "an engine goes on without its control";
      return group.control.session == 0 ? nullptr : &processes.at(group.control.session);
    }
    return nullptr;
  }
  void Check(Process& to, const protocol::Commit& message) {
    EXPECT_FALSE(to.over.contains(message.update)) << "Commit after the end";
    if (const Process* control = ControlOf(to)) {
      EXPECT_TRUE(control->paused) << "Commit before the engine has paused";
    }
    ForRanks(message.update, [&](const Process& rank, const Target& target) {
      const bool concerned = config.together && state.updates.open->fresh
                                 ? target.step != EngineStep::kOut
                                 : rank.hello.name.engine == to.hello.name.engine;
      if (concerned) {
        EXPECT_TRUE(rank.ready) << "Commit before all are Ready";
      }
    });
  }
  void Check(Process& to, const protocol::Serve& message) {
    EXPECT_FALSE(to.over.contains(message.update)) << "Serve after the end";
    if (const Process* control = ControlOf(to)) {
      EXPECT_TRUE(control->activated == state.updates.open->version) << "Serve before the caches are flushed";
    }
    ForRanks(message.update, [&](const Process& rank, const Target&) {
      if (rank.hello.name.engine == to.hello.name.engine) {
        EXPECT_TRUE(rank.committed) << "Serve before all have committed";
      }
    });
  }
  void Check(Process& to, const protocol::EngineCommand& message) {
    EXPECT_GT(message.order, to.orders.empty() ? 0 : to.orders.back().order);
    if (message.command != protocol::Command::kResume) return;
    for (const auto& [session, rank] : processes) {
      const bool member = Known(session) && rank.hello.name.role == protocol::Role::kInference &&
                          rank.hello.name.engine == to.hello.name.engine && rank.alive &&
                          rank.outbox.empty();  // Otherwise the controller cannot know yet.
      if (member) {
        EXPECT_TRUE(rank.version == message.version) << "requests are let in to a mixture";
      }
    }
  }
  /// Between GrantRequest and the end of it, as the rank knows.
  static bool Unfinished(const Process& rank) { return rank.granted; }

  template <typename Visit>
  void ForRanks(const protocol::UpdateId& update, Visit visit) {
    if (!state.updates.open || state.updates.open->id.sequence != update.sequence) return;  // Of any attempt.
    for (const Receiver& receiver : state.ranks.receivers)
      for (const Target& target : state.engines.targets)
        if (target.group == receiver.group) visit(processes.at(receiver.session), target);
  }

  void CheckState() {
    for (const Group& group : state.roster.groups()) {
      EXPECT_EQ(std::ranges::count(state.roster.workers(), group.id, &Worker::group), group.members);
      EXPECT_EQ(state.membership.join_timers.Of(group.id), Armed(TimerKind::kJoin, group.id));
      EXPECT_EQ(state.plan.groups.Of(group.id).left_out, Armed(TimerKind::kRetry, group.id));
    }
    EXPECT_EQ(state.publications.catch_up_timer, Armed(TimerKind::kCatchUp));
    EXPECT_EQ(state.opening.fence_timer, Armed(TimerKind::kFence));
    EXPECT_EQ(state.plan.phase == PlanPhase::kPreparing, Armed(TimerKind::kPrepare));
    EXPECT_EQ(state.plan.delay, Armed(TimerKind::kPlan));
    for (const auto& [timer, after] : timers)
      if (timer.kind == TimerKind::kStep) {
        const Group* group = state.roster.FindGroup(timer.group);
        const bool left = group != nullptr && state.deadlines.grant_timers.Of(group->id);
        EXPECT_TRUE(state.updates.open.has_value() || left) << "a step of no update";
      }
    if (!state.updates.open) return;
    EXPECT_FALSE(state.engines.targets.empty());
    for (const Target& target : state.engines.targets) {
      const bool timed = target.step != EngineStep::kGranted && target.step != EngineStep::kReady &&
                         target.step != EngineStep::kDone && target.step != EngineStep::kOut;
      EXPECT_EQ(timed, Armed(TimerKind::kStep, target.group)) << "step " << static_cast<int>(target.step);
    }
  }

  // --- The workers ---

  bool NoticeOneDead() {
    for (auto& [session, process] : processes) {
      if ((process.alive && !process.stuck) || !Known(session)) continue;
      LeaseOut(session);
      return true;
    }
    return false;
  }

  bool StepOne(std::mt19937* random) {
    std::vector<std::pair<int, SessionId>> choices;
    for (auto& [session, process] : processes) {
      if (!process.alive || process.refused || process.stuck || !process.linked) continue;
      if (!process.outbox.empty()) choices.emplace_back(0, session);
      if (!process.inbox.empty()) choices.emplace_back(1, session);
    }
    for (size_t i = 0; i < writes.size(); ++i)
      if (!processes.at(writes[i].to).deaf) choices.emplace_back(2, static_cast<SessionId>(i));
    if (planning) choices.emplace_back(3, 0);
    if (choices.empty()) return false;
    const auto [kind, which] = choices[random == nullptr ? 0 : (*random)() % choices.size()];
    if (kind == 0) {
      Process& process = processes[which];
      const protocol::WorkerMessage message = process.outbox.front();
      process.outbox.pop_front();
      Do(MessageReceived{which, message});
    } else if (kind == 1) {
      Process& process = processes[which];
      const protocol::ControllerMessage message = process.inbox.front();
      process.inbox.pop_front();
      std::visit([&](const auto& what) { Hear(process, what); }, message);
    } else if (kind == 2) {
      const Write write = writes[which];
      writes.erase(writes.begin() + which);
      Land(write);
    } else {
      FinishPlan();
    }
    return true;
  }

  void FinishPlan() {
    const uint32_t epoch = planning->epoch;
    const bool partly =
        !planning->from_engines && planning->sources.size() < state.roster.groups().front().world_size;
    planning.reset();
    if (partly && sharded) {
      Do(PlanFailed{epoch, {Code::kInvalidArgument, "the trainers do not hold all of it"}, {}});
    } else if (plan_error.ok()) {
      Do(PlanMade{epoch});
    } else {
      const Status error = std::exchange(plan_error, Status::Ok());
      Do(PlanFailed{epoch, error, plan_concerned});
    }
  }

  void Land(const Write& write) {
    Process& from = processes[write.from];
    Process& to = processes[write.to];
    const auto grant = to.open.find(write.grant);
    if (Lives(to) && grant != to.open.end()) {
      to.arrived.insert(grant->second);
      TryReady(to);
    } else if (Lives(from) && !from.over.contains(write.update)) {
      from.outbox.push_back(protocol::Failed{.update = write.update,
                                             .destination = write.destination,
                                             .reason = {Code::kFenced, "the grant is closed"}});
    }
  }

  void TryReady(Process& rank) {
    if (rank.ready || !rank.granted || rank.arrived.size() != rank.sources) return;
    rank.open.clear();  // Fenced.
    rank.ready = true;
    rank.spare = rank.next;
    rank.state = protocol::EngineState::kReady;
    protocol::Ready ready{
        .update = *rank.update, .bytes = 100 * rank.sources, .seconds = 0.5, .part = rank.part};
    for (uint32_t trainer = 0; trainer < rank.sources; ++trainer)
      ready.sources.push_back({.source = trainer, .bytes = 100, .seconds = 0.5});
    rank.outbox.push_back(std::move(ready));
  }

  template <typename Message>
  void Hear(Process&, const Message&) {}
  void Hear(Process& process, const protocol::Welcome& message) {
    process.run = message.run;
    if (IsControl(process)) return process.outbox.push_back(protocol::EngineCommandResult{});
    if (process.state == protocol::EngineState::kSuspended)
      return process.outbox.push_back(protocol::Suspended{});
    process.SayRegister();
  }
  void Hear(Process& process, const protocol::Plan& message) {
    if (message.gives) return process.outbox.push_back(protocol::Prepared{.epoch = message.epoch});
    process.epoch = message.epoch;
    process.run = message.run;
    process.outbox.push_back(protocol::Prepared{.epoch = message.epoch});
  }
  void Hear(Process& rank, const protocol::GrantRequest& message) {
    if (rank.epoch == 0) return;  // Sent before its Register came there.
    rank.update = message.update;
    rank.next = message.version;
    rank.part = message.part;
    rank.asked = true;
    rank.granted = rank.ready = rank.committed = false;
    rank.arrived.clear();
    rank.open.clear();
    if (!rank.grants) return;
    rank.granted = true;
    rank.spare = {};
    rank.state = protocol::EngineState::kUpdating;
    protocol::Granted granted{.update = message.update, .grants = {}, .part = message.part};
    for (uint32_t trainer = 0; trainer < rank.sources; ++trainer) {
      rank.open[++last_id] = trainer;
      granted.grants.push_back({.source = trainer, .slot = 1, .id = last_id});
    }
    rank.outbox.push_back(granted);
    TryReady(rank);
  }
  void Hear(Process& trainer, const protocol::Start& message) {
    if (!trainer.writes) return;
    const std::vector<SessionId> destinations = DestinationsOf(plans.at(message.update.epoch));
    for (const protocol::DestinationGrant& grant : message.grants)
      writes.push_back({.from = trainer.session,
                        .to = destinations.at(grant.destination),
                        .grant = grant.grant,
                        .update = message.update,
                        .destination = grant.destination});
  }
  void Hear(Process& rank, const protocol::Commit& message) {
    EXPECT_TRUE(rank.update == message.update && rank.ready);
    if (!rank.switches) return;
    rank.committed = true;
    rank.state = protocol::EngineState::kCommitted;
    rank.outbox.push_back(protocol::Committed{.update = message.update});
  }
  void Hear(Process& rank, const protocol::Serve& message) {
    EXPECT_TRUE(rank.update == message.update && rank.committed);
    rank.state = protocol::EngineState::kServing;
    rank.version = rank.next;
    EXPECT_GE(protocol::RunAndNumber(rank.version), protocol::RunAndNumber(rank.hello.newest))
        << "a version that was served is taken back";
    rank.hello.newest = rank.version;
    rank.asked = rank.granted = false;
    rank.outbox.push_back(protocol::Serving{.update = message.update, .version = rank.version});
  }
  void Hear(Process& process, const protocol::Abort& message) { kept += process.HearAbort(message) ? 1 : 0; }
  static void Hear(Process& control, const protocol::EngineCommand& message) { control.OnCommand(message); }
  void Hear(Process& source, const protocol::Release&) { ++source.releases; }
  void Hear(Process& trainer, const protocol::Stop&) { ++trainer.stops; }
  void Hear(Process& trainer, const protocol::Superseded& message) {
    EXPECT_TRUE(trainer.published.contains(message.version.number));
    ++trainer.superseded;
    trainer.published[message.version.number] = true;
  }
  void Hear(Process& trainer, const protocol::Done& message) {
    trainer.done.push_back(message);
    trainer.published[message.version.number] = true;
  }
  void Hear(Process& process, const protocol::Lost& message) { process.lost.push_back(message); }
};

}  // namespace weightcast::control
