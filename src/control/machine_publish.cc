#include <algorithm>
#include <utility>

#include "control/machine.h"

// From what the trainers publish to the update that opens.
namespace weightcast::control {
void Machine::AnswerFailed(const Worker& trainer, int64_t number, const Status& reason) {
  Tell(trainer.session, protocol::Done{.update = {},
                                       .version = protocol::VersionOf(s_.run, number),
                                       .met_policy = false,
                                       .reason = reason,
                                       .engines = {},
                                       .senders = {},
                                       .receivers = {},
                                       .routes = {}});
}

/// Bytes that came about before the run began, or in one that another controller counted. This trainer will
/// not publish the number again: others need not wait for it.
void Machine::RefusePublished(const Worker& trainer, const protocol::Published& message) {
  const std::string_view of = message.run.number == s_.run.number ? " of an earlier controller" : "";
  const Status reason(Code::kUnavailable,
                      StrCat("version ", message.number, " of ", TextOf(trainer), " is of run ",
                             message.run.number, of, "; trainers have begun run ", s_.run.number,
                             ": publish the state that they agree on under a higher number"));
  AnswerFailed(trainer, message.number, reason);
  for (const SessionId session : OfferersOf(message.number))
    if (const Worker& other = *Find(session); other.waiting) WithdrawOffer(other, reason);
}

std::vector<SessionId> Machine::OfferersOf(int64_t number) const {
  std::vector<SessionId> sessions;
  if (s_.roster.Offering(number) == 0) return sessions;
  for (const SessionId session : s_.roster.MembersOf(s_.roster.trainers()))
    if (Find(session)->offered == number) sessions.push_back(session);
  return sessions;
}

void Machine::WithdrawOffer(const Worker& trainer, const Status& reason) {
  const int64_t number = trainer.offered;
  const bool waiting = trainer.waiting;
  auto edit = Change(trainer);
  edit->offered = -1;
  edit->waiting = false;
  if (waiting) AnswerFailed(trainer, number, reason);
}

void Machine::OnPublished(const Worker& trainer, const protocol::Published& message) {
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
  auto edit = Change(trainer);
  edit->offered = message.number;
  edit->label = message.label;
  edit->hold = message.hold;
  edit->waiting = true;
}

void Machine::Supersede(int64_t number) {
  for (const SessionId session : OfferersOf(number)) {
    const Worker& trainer = *Find(session);
    if (!trainer.waiting) continue;
    auto edit = Change(trainer);
    edit->waiting = false;
    edit->offered = -1;
    Tell(session, protocol::Superseded{.version = protocol::VersionOf(s_.run, number)});
  }
  if (number > s_.withdrawn.number) s_.withdrawn = {.number = number, .reason = Status::Ok()};
}

void Machine::FailWaiting(const Status& reason, bool for_good) {
  if (!AnyWaiting()) return;
  for (const SessionId session : s_.roster.MembersOf(s_.roster.trainers())) {
    const Worker& trainer = *Find(session);
    if (!trainer.waiting) continue;
    const int64_t number = trainer.offered;
    AnswerFailed(trainer, number, reason);
    if (for_good && number > s_.withdrawn.number) s_.withdrawn = {.number = number, .reason = reason};
    auto edit = Change(trainer);
    edit->waiting = false;
    if (for_good || !trainer.hold) edit->offered = -1;
  }
}

/// Numbers only grow: what one trainer has gone past, no other completes.
void Machine::FailPassed() {
  if (!s_.roster.AnyPassed()) return;
  const auto newest = std::ranges::max_element(s_.roster.workers(), {}, &Worker::offered);
  for (const Worker& trainer : s_.roster.workers()) {
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
  const Group& trainers = s_.roster.trainers();
  if (!Complete(trainers) && !trainers.loss.ok()) {
    FailWaiting(trainers.loss, true);
    return;
  }
  if (s_.plan.epoch == 0 || s_.engine_loss.ok()) return;
  const bool engine_left = std::ranges::any_of(
      s_.roster.groups(), [](const Group& group) { return group.id != kTrainers && Complete(group); });
  if (engine_left) return;
  // Engines may have left because a trainer died, before its lease has run out here.
  std::string broken;
  for (const Worker& worker : s_.roster.workers())
    if (worker.group == kTrainers && !worker.connected)
      broken += StrCat("; the connection of ", TextOf(worker), " is broken too");
  FailWaiting({s_.engine_loss.code(), StrCat("no engine is left: ", s_.engine_loss.message(), broken,
                                             "; start one again, then publish again")},
              false);
}

int64_t Machine::CommonOffer() const { return Complete(s_.roster.trainers()) ? s_.roster.CommonOffer() : -1; }

std::string Machine::Disagreement() const {
  int64_t newest = -1;
  for (const Worker& worker : s_.roster.workers())
    if (worker.group == kTrainers) newest = std::max(newest, worker.offered);
  for (const Worker& worker : s_.roster.workers()) {
    if (worker.group != kTrainers || worker.offered == newest) continue;
    return worker.offered < 0 ? StrCat(TextOf(worker), " has not published version ", newest)
                              : StrCat(TextOf(worker), " is at version ", worker.offered, ", not ", newest);
  }
  return {};
}

void Machine::ArmCatchUp() {
  const bool wanted = AnyWaiting() && !s_.update && Complete(s_.roster.trainers()) && CommonOffer() < 0;
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

void Machine::OnCancel(const Worker& trainer, const protocol::Cancel& message) {
  const Status reason(Code::kCancelled, StrCat("cancelled by ", TextOf(trainer),
                                               ", which called cancel; publish the next version"));
  const bool offers = trainer.offered == message.number;
  const bool named = s_.update && s_.update->version.number == message.number;
  const bool of_this_run = named && protocol::RunOf(s_.update->version) == s_.run;
  // Its session may be another than the one with which the update began.
  const bool open = named && (Contains(s_.update->trainers, trainer.session) || (offers && of_this_run));
  if (offers || (open && of_this_run)) {
    for (const SessionId session : OfferersOf(message.number))
      WithdrawOffer(*Find(session), reason);  // Not to be sent to engines that join later either.
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
  if (group.served == version) return absent(true, Status::Ok());
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
  for (const SessionId session :
       group.counts.fencing == 0 ? std::vector<SessionId>{} : s_.roster.MembersOf(group)) {
    const Worker& worker = *Find(session);
    if (!worker.fencing) continue;
    if (!group.fence_overdue) return Part::kFencing;
    return absent(false, {Code::kFenced,
                          StrCat(TextOf(worker), " still waits for the end of a write of ",
                                 protocol::ToString(*worker.fencing),
                                 ": the writer is stopped or unreachable; the log of this rank names it: end "
                                 "that process, or let it continue")});
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
  for (const SessionId session : s_.roster.trainers().ranks) {
    const Worker& worker = *Find(session);
    fresh = fresh || worker.waiting;
    held = held && worker.hold;
    if (worker.rank == 0) label = worker.label;
  }
  if (!fresh && !held) return;

  UpdateState update;
  update.version = protocol::VersionOf(s_.run, number, std::move(label));
  bool fencing = false;
  for (const Group& group : s_.roster.groups()) {
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
  for (const Group& group : s_.roster.groups())
    if (group.counts.fencing != 0) Change(group).fence_overdue = true;
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
    if (std::ranges::binary_search(update.targets, rank.group, {}, &Target::group))
      update.receivers.push_back(
          {.session = rank.session, .group = rank.group, .rank = rank.rank, .destination = number});
  }
  for (const SessionId session : s_.roster.trainers().ranks) Change(*Find(session))->waiting = false;
  Log(LogLevel::kInfo, protocol::ToString(update.id), ": version ", ToString(update.version), " to ",
      update.targets.size(), " engines");
  update.Index();
  s_.update = std::move(update);
  AddSenders();
  s_.roster.TouchAll();
  for (Target& target : s_.update->targets) BeginGrants(target);
}

void Machine::AddSenders() {
  UpdateState& update = *s_.update;
  update.first_sender = update.senders.size();
  for (const SessionId session : s_.plan.sources) {
    const Worker* source = Find(session);
    update.senders.push_back(source == nullptr ? protocol::WorkerName{} : NameOf(*source));
  }
}

void Machine::BeginGrants(Target& target) {
  const Group& group = *FindGroup(target.group);
  if (group.counts.in_place != 0 && group.controlled) {
    OrderFor(target, EngineStep::kPausing, protocol::Move::kPause, {});
  } else {
    AskForGrants(target);
  }
}

/// Those of its ranks that have not every byte.
void Machine::AskForGrants(Target& target) {
  std::vector<SessionId> asked;
  protocol::GrantRequest request{.update = {}, .version = s_.update->version, .part = 0};
  for (Receiver& rank : s_.update->RanksOf(target)) {
    if (rank.step >= RankStep::kReady) continue;
    rank.id = s_.update->id;
    rank.started = false;
    request.update = rank.id;
    asked.push_back(rank.session);
  }
  if (!asked.empty()) actions_.push_back(SendAll{std::move(asked), std::move(request)});
  AwaitGrants(target);
}

/// Whoever was late for one update does not get the whole time anew for the next.
void Machine::AwaitGrants(Target& target) {
  Group& group = ChangeGroup(target.group);
  SetStep(target, EngineStep::kGranting);
  target.overdue = group.grant_timer;
  if (target.overdue) return;
  group.grant_timer = s_.update->fresh;
  Arm(TimerKind::kStep, target.group, s_.update->fresh ? LimitOf(target) : config_.lease);
}

}  // namespace weightcast::control
