#include <algorithm>
#include <utility>

#include "tests/reference/machine.h"

// From what the trainers publish to the update that opens.
namespace weightcast::reference {
void Machine::AnswerFailed(Worker& trainer, int64_t number, const Status& reason) {
  Tell(trainer.session, protocol::Done{.update = {},
                                       .version = protocol::VersionOf(s_.run, number),
                                       .met_policy = false,
                                       .reason = reason,
                                       .engines = {},
                                       .senders = {},
                                       .receivers = {},
                                       .routes = {},
                                       .seconds = 0});
}

/// Bytes that came about before the run began, or in one that another controller counted. This trainer will
/// not publish the number again: others need not wait for it.
void Machine::RefusePublished(Worker& trainer, const protocol::Published& message) {
  const std::string_view of = message.run.number == s_.run.number ? " of an earlier controller" : "";
  const Status reason(Code::kUnavailable,
                      StrCat("version ", message.number, " of ", TextOf(trainer), " is of run ",
                             message.run.number, of, "; trainers have begun run ", s_.run.number,
                             ": publish the state that they agree on under a higher number"));
  AnswerFailed(trainer, message.number, reason);
  for (Worker& other : s_.workers)
    if (other.waiting && other.offered == message.number) WithdrawOffer(other, reason);
}

void Machine::WithdrawOffer(Worker& trainer, const Status& reason) {
  const int64_t number = std::exchange(trainer.offered, -1);
  if (std::exchange(trainer.waiting, false)) AnswerFailed(trainer, number, reason);
}

void Machine::OnPublished(Worker& trainer, const protocol::Published& message) {
  if (message.run != s_.run) return RefusePublished(trainer, message);
  const int64_t before = trainer.offered;
  if (message.number <= before) {
    AnswerFailed(
        trainer, message.number,
        {Code::kInvalidArgument, StrCat("version ", message.number, " is not newer than ", before, ", which ",
                                        TextOf(trainer), " has published; publish a higher number")});
    return;
  }
  if (trainer.waiting) Supersede(before);
  if (message.number <= s_.withdrawn.number) {
    if (s_.withdrawn.reason.ok()) {
      Tell(trainer.session, protocol::Superseded{.version = protocol::VersionOf(s_.run, message.number)});
    } else {
      AnswerFailed(trainer, message.number, s_.withdrawn.reason);
    }
    return;
  }
  trainer.offered = message.number;
  trainer.label = message.label;
  trainer.hold = message.hold;
  trainer.waiting = true;
}

void Machine::Supersede(int64_t number) {
  for (Worker& trainer : s_.workers) {
    if (trainer.group != kTrainers || !trainer.waiting || trainer.offered != number) continue;
    trainer.waiting = false;
    trainer.offered = -1;
    Tell(trainer.session, protocol::Superseded{.version = protocol::VersionOf(s_.run, number)});
  }
  if (number > s_.withdrawn.number) s_.withdrawn = {.number = number, .reason = Status::Ok()};
}

void Machine::FailWaiting(const Status& reason, bool for_good) {
  for (Worker& trainer : s_.workers) {
    if (trainer.group != kTrainers || !trainer.waiting) continue;
    const int64_t number = trainer.offered;
    trainer.waiting = false;
    AnswerFailed(trainer, number, reason);
    if (for_good && number > s_.withdrawn.number) s_.withdrawn = {.number = number, .reason = reason};
    if (for_good || !trainer.hold) trainer.offered = -1;
  }
}

bool Machine::AnyWaiting() const {
  return std::any_of(s_.workers.begin(), s_.workers.end(),
                     [](const Worker& worker) { return worker.waiting; });
}

/// Numbers only grow: what one trainer has gone past, no other completes.
void Machine::FailPassed() {
  const auto newest =
      std::max_element(s_.workers.begin(), s_.workers.end(),
                       [](const Worker& one, const Worker& other) { return one.offered < other.offered; });
  for (Worker& trainer : s_.workers) {
    if (!trainer.waiting || trainer.offered == newest->offered) continue;
    WithdrawOffer(trainer,
                  {Code::kInvalidArgument,
                   StrCat("version ", trainer.offered, " of ", TextOf(trainer),
                          " cannot be completed: ", TextOf(*newest), " has gone on to version ",
                          newest->offered, "; publish the state that they agree on under a higher number")});
  }
}

void Machine::FailHopeless() {
  FailPassed();
  if (!AnyWaiting()) return;
  const Group& trainers = s_.groups.front();
  if (!Complete(trainers) && !trainers.loss.ok()) {
    FailWaiting(trainers.loss, true);
    return;
  }
  const bool engine_left = std::any_of(s_.groups.begin() + 1, s_.groups.end(),
                                       [&](const Group& group) { return Complete(group); });
  if (engine_left || s_.plan.epoch == 0 || s_.engine_loss.ok()) return;
  // Engines may have left because a trainer died, before its lease has run out here.
  std::string broken;
  for (const Worker& worker : s_.workers)
    if (worker.group == kTrainers && !worker.connected)
      broken += StrCat("; the connection of ", TextOf(worker), " is broken too");
  FailWaiting({s_.engine_loss.code(), StrCat("no engine is left: ", s_.engine_loss.message(), broken,
                                             "; start one again, then publish again")},
              false);
}

int64_t Machine::CommonOffer() const {
  if (!Complete(s_.groups.front())) return -1;
  std::optional<int64_t> common;
  for (const Worker& worker : s_.workers) {
    if (worker.group != kTrainers) continue;
    if (common && *common != worker.offered) return -1;
    common = worker.offered;
  }
  return common.value_or(-1);
}

std::string Machine::Disagreement() const {
  int64_t newest = -1;
  for (const Worker& worker : s_.workers)
    if (worker.group == kTrainers) newest = std::max(newest, worker.offered);
  for (const Worker& worker : s_.workers) {
    if (worker.group != kTrainers || worker.offered == newest) continue;
    return worker.offered < 0 ? StrCat(TextOf(worker), " has not published version ", newest)
                              : StrCat(TextOf(worker), " is at version ", worker.offered, ", not ", newest);
  }
  return {};
}

void Machine::ArmCatchUp() {
  const bool wanted = AnyWaiting() && !s_.update && Complete(s_.groups.front()) && CommonOffer() < 0;
  if (wanted == s_.catch_up_timer) return;
  s_.catch_up_timer = wanted;
  if (wanted) {
    Arm(TimerKind::kCatchUp, 0, config_.timeout);
  } else {
    Disarm(TimerKind::kCatchUp);
  }
}

void Machine::OnCatchUpTimer() {
  if (!s_.catch_up_timer) return;
  s_.catch_up_timer = false;
  if (s_.update || CommonOffer() >= 0) return;
  const Status reason(Code::kTimedOut, StrCat(Disagreement(), " within ", Seconds(config_.timeout),
                                              " s (timeout); see the log of who is missing"));
  s_.last_error = reason;
  Log(LogLevel::kError, reason.message());
  FailWaiting(reason, true);
}

void Machine::OnCancel(Worker& trainer, const protocol::Cancel& message) {
  const Status reason(Code::kCancelled, StrCat("cancelled by ", TextOf(trainer),
                                               ", which called cancel; publish the next version"));
  const bool offers = trainer.offered == message.number;
  const bool named = s_.update && s_.update->version.number == message.number;
  const bool of_this_run = named && protocol::RunOf(s_.update->version) == s_.run;
  // Its session may be another than the one with which the update began.
  const bool open = named && (Contains(s_.update->trainers, trainer.session) || (offers && of_this_run));
  if (offers || (open && of_this_run)) {
    for (Worker& other : s_.workers)  // Not to be sent to engines that join later either.
      if (other.group == kTrainers && other.offered == message.number) WithdrawOffer(other, reason);
    if (message.number > s_.withdrawn.number) s_.withdrawn = {.number = message.number, .reason = reason};
  }
  if (open) AbortAll(reason);
}

Machine::Part Machine::PartOf(const Group& group, const Version& version, bool fresh,
                              UpdateState& update) const {
  const auto absent = [&](bool committed, Status reason) {
    if (fresh)
      update.absent.push_back({.engine = group.name, .committed = committed, .reason = std::move(reason)});
    return fresh ? Part::kAbsent : Part::kIgnored;
  };
  const Version served = EngineVersion(group);
  if (served == version) return absent(true, Status::Ok());
  if (TakesBack(group, version))
    return absent(false, {Code::kInvalidArgument,
                          StrCat("engine ", group.name, " has served version ", ToString(NewestOf(group)),
                                 " already; publish a higher number")});
  if (!fresh && group.tried == version && group.tries >= kMaxTries) return Part::kIgnored;
  if (group.steering.overdue)
    return absent(false,
                  {Code::kTimedOut,
                   StrCat("the control of engine ", group.name, " has not answered since it was asked to ",
                          protocol::NameOf(group.steering.move), "; see the log of the engine's front end")});
  for (const Worker& worker : s_.workers) {
    if (worker.group != group.id || !worker.fencing) continue;
    if (!group.fence_overdue) return Part::kFencing;
    return absent(false, {Code::kFenced,
                          StrCat(TextOf(worker), " still fences off ", protocol::ToString(*worker.fencing),
                                 ": a writer of it is stopped or unreachable; its log names the writer: end "
                                 "that, or let it continue")});
  }
  return Part::kTarget;
}

void Machine::TryOpen() {
  const PlanState& plan = s_.plan;
  if (!plan.delay && plan.phase != PlanPhase::kPreparing && OpenFromPeers()) return;
  const int64_t number = CommonOffer();
  if (s_.update || plan.phase != PlanPhase::kPrepared || plan.stale || number < 0) return;
  bool fresh = false;
  bool held = true;
  std::string label;
  for (const Worker& worker : s_.workers) {
    if (worker.group != kTrainers) continue;
    fresh = fresh || worker.waiting;
    held = held && worker.hold;
    if (worker.rank == 0) label = worker.label;
  }
  if (!fresh && !held) return;

  UpdateState update;
  update.version = protocol::VersionOf(s_.run, number, std::move(label));
  bool fencing = false;
  for (const Group& group : s_.groups) {
    if (group.id == kTrainers || !group.planned) continue;
    const Part part = PartOf(group, update.version, fresh, update);
    fencing = fencing || part == Part::kFencing;
    if (part == Part::kTarget)
      update.targets.push_back({.group = group.id, .step = EngineStep::kGranting, .reason = {}});
  }
  if (fencing != s_.fence_timer) {
    s_.fence_timer = fencing;
    fencing ? Arm(TimerKind::kFence, 0, config_.timeout) : Disarm(TimerKind::kFence);
  }
  if (!fencing && (fresh || !update.targets.empty())) Open(std::move(update), fresh);
}

void Machine::OnFenceTimer() {
  if (!s_.fence_timer) return;
  s_.fence_timer = false;
  for (const Worker& worker : s_.workers)
    if (worker.fencing) FindGroup(worker.group)->fence_overdue = true;
}

void Machine::Open(UpdateState update, bool fresh) {
  if (fresh || s_.sequence == 0) {  // No update has the number 0, not even one to a version that is held.
    ++s_.sequence;
    s_.attempt = 0;
  } else {
    ++s_.attempt;
  }
  update.fresh = fresh;
  update.trainers = s_.plan.sources;
  update.id = {.term = config_.term, .epoch = s_.plan.epoch, .sequence = s_.sequence, .attempt = s_.attempt};
  for (uint32_t number = 0; number < s_.plan.destinations.size(); ++number) {
    const Worker& rank = *Find(s_.plan.destinations[number]);
    const bool takes_part = std::any_of(update.targets.begin(), update.targets.end(),
                                        [&](const Target& target) { return target.group == rank.group; });
    if (takes_part)
      update.receivers.push_back(
          {.session = rank.session, .group = rank.group, .rank = rank.rank, .destination = number});
  }
  for (Worker& worker : s_.workers) worker.waiting = false;
  Log(LogLevel::kInfo, protocol::ToString(update.id), ": version ", ToString(update.version), " to ",
      update.targets.size(), " engines");
  s_.update = std::move(update);
  for (Target& target : s_.update->targets) BeginGrants(target);
}

void Machine::BeginGrants(Target& target) {
  const bool in_place = std::any_of(s_.workers.begin(), s_.workers.end(), [&](const Worker& worker) {
    return worker.group == target.group && worker.landing == protocol::Landing::kInPlace;
  });
  if (in_place && FindGroup(target.group)->controlled) {
    OrderFor(target, EngineStep::kPausing, protocol::Move::kPause, {});
  } else {
    AskForGrants(target);
  }
}

/// Those of its ranks that have not every byte.
void Machine::AskForGrants(Target& target) {
  for (Receiver& rank : s_.update->receivers) {
    if (rank.group != target.group || rank.step >= RankStep::kReady) continue;
    rank.id = s_.update->id;
    rank.started = false;
    Tell(rank.session, protocol::GrantRequest{.update = rank.id, .version = s_.update->version, .part = 0});
  }
  AwaitGrants(target);
}

/// Whoever was late for one update does not get the whole time anew for the next.
void Machine::AwaitGrants(Target& target) {
  Group& group = *FindGroup(target.group);
  target.step = EngineStep::kGranting;
  target.overdue = group.grant_timer;
  if (target.overdue) return;
  group.grant_timer = s_.update->fresh;
  Arm(TimerKind::kStep, target.group, s_.update->fresh ? LimitOf(target) : config_.lease);
}

}  // namespace weightcast::reference
