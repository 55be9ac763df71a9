#include "control/deadline_rule.h"

#include <cstddef>

#include "control/deadline_state.h"
#include "control/roster_facts.h"

namespace weightcast::control {
namespace {

struct Missing {
  RankStep wanted;
  std::string_view text;
};
constexpr std::string_view kNotInWait =
    " has not switched; let its engine call receive() or wait(), or raise settings grant_timeout and "
    "commit_timeout";
constexpr Missing kNotHandedOn{RankStep::kGranted,
                               " has not handed on the last group that it received; let its engine call "
                               "receive_group() until the last, or raise setting commit_timeout"};
// By EngineStep.
constexpr Missing kMissing[] = {
    {RankStep::kReady, " has not got its bytes from another holder; see its log"},
    {RankStep::kAsked, ""},
    {RankStep::kGranted,
     " has not granted the update; let its engine call begin() or wait(), or raise setting grant_timeout"},
    {RankStep::kGranted, ""},
    {RankStep::kReady, " has not received every byte; see its log, and the network to it"},
    {RankStep::kReady, ""},
    {RankStep::kAsked, ""},
    {RankStep::kCommitted,
     " has not switched; let its engine call receive() and finish(), or raise setting commit_timeout"},
    {RankStep::kAsked, ""},
    {RankStep::kServing, " has not said that it serves the version; check that it runs, and see its log"}};

}  // namespace

Duration DeadlineRule::LimitOf(const EngineProgress& engine) const {
  switch (engine.step) {
    case EngineStep::kSourceless:
      return 2 * config_.timeout;  // To fence, to plan and to connect.
    case EngineStep::kGranting:    // Later parts: the engine takes over the one before.
      return engine.part == 0 ? config_.grant_timeout : config_.commit_timeout;
    case EngineStep::kWriting:
      return config_.timeout;
    case EngineStep::kCommitting:
      // With shadow landing this is the step for which the engine has to come.
      return (HasShadow(*roster_.FindGroup(engine.group)) ? config_.grant_timeout : Duration::zero()) +
             config_.commit_timeout;
    default:
      return config_.commit_timeout;
  }
}

void DeadlineRule::SetGranting(GroupId group, bool granting) {
  if (roster_.FindGroup(group) == nullptr) return;
  roster_.touched().Add(group);
  state_.grant_timers.Edit(group) = granting;
}

void DeadlineRule::Begin(GroupId engine) {
  out_.Arm(TimerKind::kStep, engine, LimitOf(*rules_.engines->Of(engine)));
}

void DeadlineRule::End(GroupId engine) {
  SetGranting(engine, false);
  out_.Disarm(TimerKind::kStep, engine);
}

/// An engine that was late for one update does not get the whole time again for the next.
void DeadlineRule::BeginGrants(GroupId engine) {
  const bool late = IsGranting(engine);
  state_.overdue.Edit(engine) = late;
  if (late) return;
  const bool fresh = rules_.updates->update().fresh;
  SetGranting(engine, fresh);
  out_.Arm(TimerKind::kStep, engine, fresh ? LimitOf(*rules_.engines->Of(engine)) : config_.lease);
}

void DeadlineRule::EndGrants(GroupId engine) { SetGranting(engine, false); }

bool DeadlineRule::IsGranting(GroupId engine) const { return state_.grant_timers.Of(engine); }

bool DeadlineRule::IsOverdue(GroupId engine) const { return state_.overdue.Of(engine); }

void DeadlineRule::Close() { state_.overdue = {}; }

void DeadlineRule::Lose(GroupId group) {
  if (IsGranting(group) && rules_.engines->Of(group) == nullptr) End(group);
}

void DeadlineRule::ForgetGroup(GroupId group) { state_.grant_timers.Remove(group); }

void DeadlineRule::OnStepTimer(GroupId group) {
  const EngineProgress* engine = rules_.engines->Of(group);
  const bool first = engine != nullptr && engine->step == EngineStep::kGranting && engine->part == 0;
  if (first && !rules_.updates->update().fresh && !IsOverdue(group)) {
    SetGranting(group, true);
    state_.overdue.Edit(group) = true;
    return Begin(group);
  }
  SetGranting(group, false);
  if (engine == nullptr) return;
  const bool waits = engine->step == EngineStep::kGranted || engine->step == EngineStep::kReady;
  if (waits || engine->step >= EngineStep::kDone) return;
  if (!IsCommanded(engine->step)) return TimedOut(*engine);
  rules_.engines->CommandFailed(group, rules_.commands->TimedOut(*roster_.FindGroup(group)));
}

void DeadlineRule::TimedOut(const EngineProgress& engine) {
  const bool hands_on = engine.step == EngineStep::kGranting && engine.part > 0;
  const Missing& missing = hands_on ? kNotHandedOn : kMissing[static_cast<size_t>(engine.step)];
  const Worker* who = rules_.ranks->MissingAt(engine.group, missing.wanted);
  const Group& group = *roster_.FindGroup(engine.group);
  const bool late = engine.step == EngineStep::kCommitting && HasShadow(group);
  const Status reason = Error(Code::kTimedOut, who == nullptr ? TextOf(group) : TextOf(roster_, *who),
                              late ? kNotInWait : missing.text, " (", Seconds(LimitOf(engine)), " s)");
  if (engine.step == EngineStep::kServing)
    out_.Log(LogLevel::kWarning,
             reason.message());  // A Serve is never taken back.
  rules_.engines->LoseRank(engine.group, reason, engine.step == EngineStep::kSourceless ? nullptr : who);
}

}  // namespace weightcast::control
