#include <gtest/gtest.h>

#include <utility>

#include "protocol/messages.h"
#include "unit/control/simulator.h"
#include "unit/diagram.h"

// Random orders of messages, deaths, restarts and late timers. The promises are checked at every action by
// the simulator; here is what must hold in the end.
namespace weightcast::control {
namespace {

std::string_view NameOfEvent(const Event& event) {
  if (const auto* said = std::get_if<MessageReceived>(&event)) return protocol::NameOf(said->message);
  static constexpr std::string_view kNames[] = {"Hello", "stream broken", "stream back", "lease over",
                                                "",      "time-out",      "plan made",   "plan failed"};
  return kNames[event.index()];
}

class Adversary : public Simulator {
 public:
  Adversary(uint32_t seed, test::Diagram& diagram) : random_(seed) {
    on_step = [&diagram](const MachineState& before, const Event& event, const MachineState& after) {
      Draw(before, event, after, diagram);
    };
    config.together = Chance(2);
    trainers_ = 1 + Pick(3);
    for (uint32_t engine = 0; engine < 1 + Pick(3); ++engine) engines_.push_back(1 + Pick(2));
    landing_ = Chance(2) ? protocol::Landing::kInPlace : protocol::Landing::kShadow;
    hold_ = Chance(3);
    controlled_ = Chance(2);
  }

  void Run(int steps) {
    const uint32_t calm = 6U << Pick(4);  // Deliveries between two disturbances, on average.
    for (uint32_t i = 0; i < 2 * trainers_ + 4 * engines_.size(); ++i) StartSomeone();
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      if (!Chance(calm)) {
        if (!StepRandom(random_) && Armed(TimerKind::kPlan)) Fire(TimerKind::kPlan);
        continue;
      }
      Disturb();
    }
    for (auto& [session, process] : processes) {
      Unstick(process);
      if (IsControl(process) && Lives(process)) CommandLate(session);
    }
    for (auto& [session, process] : processes) {
      if (process.linked || !Lives(process)) continue;
      process.linked = true;
      if (Known(session)) Do(Resumed{session});
    }
    RunOut();
  }

  void CheckEnd() {
    EXPECT_FALSE(state.updates.open.has_value()) << "an update without an end";
    EXPECT_TRUE(timers.empty());
    for (const auto& [session, process] : processes) {
      if (!Lives(process)) continue;
      for (const auto& [number, answered] : process.published) {
        EXPECT_TRUE(answered) << protocol::ToString(process.hello.name) << " has no answer for " << number;
      }
      EXPECT_FALSE(process.granted && !process.committed && IsTrainer(process));
    }
    CheckEnginesAgree();
    CheckCommands();
  }

  /// Requests are let in exactly where one version is served.
  void CheckCommands() {
    for (const Group& group : state.roster.groups()) {
      if (group.control.session == 0) continue;
      const Process& control = processes.at(group.control.session);
      const auto view = ViewOf(state);
      const auto shown = std::find_if(view.engines.begin(), view.engines.end(),
                                      [&](const auto& engine) { return engine.name == group.name; });
      const bool serves = shown->version.number >= 0;
      if (!serves) {
        EXPECT_FALSE(control.admitted) << group.name << " is let in without a version";
      } else if (!state.commands.last.Of(group.id).failed) {
        EXPECT_TRUE(control.admitted && !control.paused) << group.name << " is held back: " << shown->control;
      }
    }
  }

  /// Once nothing goes on, the ranks of a whole engine serve the same version or the engine is not serving.
  void CheckEnginesAgree() {
    for (const auto& engine : ViewOf(state).engines) {
      if (engine.state != protocol::EngineState::kServing || engine.version.number < 0) continue;
      for (const auto& [session, process] : processes) {
        if (Known(session) && !IsControl(process) && process.hello.name.engine == engine.name) {
          EXPECT_TRUE(process.version == engine.version);
        }
      }
    }
  }
  [[nodiscard]] int Reregistered() const { return reregistered_; }
  [[nodiscard]] int Superseded() const {
    int count = 0;
    for (const auto& [session, process] : processes) count += process.superseded;
    return count;
  }
  [[nodiscard]] bool Committed() const { return state.updates.committed.number >= 0; }

 private:
  /// An engine's way through an update; outside one it rests.
  static void Draw(const MachineState& before, const Event& event, const MachineState& after,
                   test::Diagram& diagram) {
    const auto step = [](const MachineState& state, GroupId group) -> std::string_view {
      if (!state.updates.open) return "rest";
      for (const Target& target : state.engines.targets)
        if (target.group == group) return NameOf(target.step);
      return "rest";
    };
    for (const Group& group : after.roster.groups())
      diagram.Saw(step(before, group.id), step(after, group.id), NameOfEvent(event));
  }

  uint32_t Pick(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  bool Chance(uint32_t one_in) { return Pick(one_in) == 0; }

  static void Unstick(Process& process) {
    process.stuck = false;
    process.grants = process.switches = process.fences = process.writes = process.commands = true;
  }

  Process* Any() {
    std::vector<Process*> living;
    for (auto& [session, process] : processes)
      if (Lives(process)) living.push_back(&process);
    return living.empty() ? nullptr : living[Pick(static_cast<uint32_t>(living.size()))];
  }

  void StartSomeone() {
    const uint32_t which = Pick(1 + static_cast<uint32_t>(engines_.size()));
    if (which == 0) {
      JoinTrainer(Pick(trainers_), trainers_);
    } else if (controlled_ && Chance(4)) {
      JoinControl(StrCat("e", which));
    } else {
      JoinRank(StrCat("e", which), Pick(engines_[which - 1]), engines_[which - 1], landing_);
    }
  }

  void PublishNext() {
    ++number_;
    for (auto& [session, process] : processes)
      if (IsTrainer(process) && Lives(process) && !Chance(20)) Publish(session, number_, hold_);
  }

  void Disturb() {
    Process* process = Any();
    switch (Pick(12)) {
      case 0:
      case 1:
      case 2:
        for (int i = 0; i < 4; ++i) StartSomeone();
        return;
      case 3:
      case 4:
      case 5:
      case 6:
      case 7:
        PublishNext();
        return;
      case 8:
        if (!timers.empty()) {
          auto timer = timers.begin();
          std::advance(timer, Pick(static_cast<uint32_t>(timers.size())));
          const TimerId id = timer->first;
          if (id.kind != TimerKind::kJoin || Chance(8)) Fire(id.kind, id.group);
        }
        return;
      default:
        if (process != nullptr) Hurt(*process);
    }
  }

  void Hurt(Process& process) {
    const SessionId session = process.session;
    switch (Pick(10)) {
      case 0:
        Kill(session);
        if (Chance(2)) LeaseOut(session);
        return;
      case 1:  // A break and a return.
        if (process.linked && Known(session)) {
          process.linked = false;
          Do(StreamBroken{session});
        } else if (!process.linked && Known(session)) {
          process.linked = true;
          Do(Resumed{session});
        }
        return;
      case 2:
        process.grants = !process.grants || Chance(2);
        process.commands = !process.commands || Chance(2);
        return;
      case 3:
        process.switches = !process.switches || Chance(2);
        if (IsControl(process)) process.cannot = {Code::kUnavailable, "not now"};
        return;
      case 4:
        process.writes = !process.writes || Chance(2);
        return;
      case 5:
        if (Chance(3)) process.outbox.push_back(protocol::Leave{});
        return;
      case 6:
        if (IsTrainer(process)) process.outbox.push_back(protocol::Cancel{.number = number_});
        return;
      case 7:
        Reregister(process);
        return;
      case 8:
        if (state.updates.open && !IsControl(process))
          process.outbox.push_back(
              protocol::Failed{.update = state.updates.open->id,
                               .destination = IsTrainer(process) && Chance(2) ? int64_t{Pick(3)} : -1,
                               .reason = {Code::kInternal, "a step failed"}});
        return;
      default:
        if (state.plan.phase == PlanPhase::kPreparing && !IsControl(process))
          process.outbox.push_back(
              protocol::Failed{.update = {.term = config.term, .epoch = state.plan.epoch},
                               .destination = IsTrainer(process) && Chance(2) ? int64_t{Pick(3)} : -1,
                               .reason = {Code::kUnavailable, "no path"}});
    }
  }

  /// As workers do it: not while memory may be written.
  void Reregister(Process& process) {
    if (process.granted || IsControl(process)) return;
    if (!IsTrainer(process) && Chance(2)) {  // Other memory.
      process.version = {};
      process.state = protocol::EngineState::kJoining;
    }
    RegisterAnew(process.session);
    ++reregistered_;
  }

  std::mt19937 random_;
  uint32_t trainers_ = 1;
  std::vector<uint32_t> engines_;
  protocol::Landing landing_ = protocol::Landing::kInPlace;
  bool hold_ = false;
  bool controlled_ = false;
  int64_t number_ = 0;
  int reregistered_ = 0;
};

TEST(MachineRandom, EveryPromiseHoldsInEveryOrder) {
  test::Diagram diagram;
  uint64_t opened = 0;
  int committed = 0;
  int kept = 0;
  int superseded = 0;
  int reregistered = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(StrCat("seed ", seed));
    Adversary adversary(seed, diagram);
    adversary.Run(2000);
    adversary.CheckEnd();
    if (::testing::Test::HasFailure()) break;
    committed += adversary.Committed() ? 1 : 0;
    opened += adversary.state.updates.sequence;
    kept += adversary.kept;
    superseded += adversary.Superseded();
    reregistered += adversary.Reregistered();
  }
  EXPECT_GT(committed, 120) << "the adversary leaves too little alive to prove anything";
  EXPECT_GT(opened, 1500U);
  EXPECT_GT(kept, 50) << "grants that no source was told of";
  EXPECT_GT(superseded, 100);
  EXPECT_GT(reregistered, 100);
  diagram.ExpectInDocs("an engine in an update");
}

}  // namespace
}  // namespace weightcast::control
