#include "control/membership_rule.h"

#include <algorithm>
#include <string>
#include <utility>

#include "control/group_change.h"
#include "control/hello_check.h"
#include "control/membership_state.h"
#include "control/roster_facts.h"
#include "control/worker_change.h"

namespace weightcast::control {
namespace {

/// Engines without a rank whose last error is still shown.
constexpr size_t kEmptyEnginesKept = 32;
constexpr size_t kNamesInMessage = 8;

/// "engine a rank 1, 2".
std::string MissingMembers(const Group& group) {
  std::string names;
  size_t missing = 0;
  for (uint32_t rank = 0; rank < group.world_size; ++rank) {
    if (group.ranks[rank] != 0 || ++missing > kNamesInMessage) continue;
    names += StrCat(missing == 1 ? "" : ", ", rank);
  }
  if (missing > kNamesInMessage) names += StrCat(" and ", missing - kNamesInMessage, " more");
  return StrCat(group.id == kTrainers ? "trainer " : StrCat("engine ", group.name, " rank "), names);
}

}  // namespace

// --- Coming ---------------------------------------------------------------------------------------------

Status MembershipRule::TakePlace(const protocol::Hello& hello) {
  const Group* group = roster_.Named(hello.name.engine);
  const Worker* holder = group == nullptr ? nullptr : WorkerAt(roster_, *group, hello.name.rank);
  if (holder == nullptr) return Status::Ok();
  const bool same_process = holder->incarnation == hello.incarnation;
  if (holder->connected && !same_process)
    return Error(Code::kInvalidArgument, "rank taken: ", protocol::ToString(hello.name),
                 " is already here in another process (`weightcast info "
                 "--controller` shows where); give each its own rank");
  const Status reason = Error(Code::kPeerDead, protocol::ToString(hello.name), " is lost: ",
                              same_process ? "its process has begun a new session; let trainers publish again"
                                           : "a new process has taken its place; let trainers publish again");
  const SessionId old = holder->session;
  out_.Add(Forget{old});
  Lose(old, reason);
  return Status::Ok();
}

const Group& MembershipRule::GroupFor(const protocol::Hello& hello) {
  const Group* known = roster_.Named(hello.name.engine);
  const Group& group = known == nullptr ? roster_.AddGroup(hello.name.engine) : *known;
  roster_.touched().Add(group.id);
  const bool control = hello.name.role == protocol::Role::kControl;
  if (group.members == 0 && !control) roster_.SetWorldSize(group, hello.world_size);
  return group;
}

void MembershipRule::AddWorker(SessionId session, const protocol::Hello& hello, const Group& group) {
  Worker worker;
  worker.session = session;
  worker.group = group.id;
  worker.rank = hello.name.rank;
  worker.incarnation = hello.incarnation;
  if (group.id != kTrainers) {
    worker.newest = protocol::LaterOf(hello.version, hello.newest);
    worker.version = hello.version;
    worker.state = StateToldBy(hello.state, hello.version);
  }
  roster_.Add(std::move(worker));
}

void MembershipRule::OnAttached(const Attached& event) {
  const protocol::Hello& hello = event.hello;
  Status refusal = CheckHello(config_, roster_, *rules_.runs, hello);
  const bool control = hello.name.role == protocol::Role::kControl;
  if (refusal.ok() && !control) refusal = TakePlace(hello);
  if (!refusal.ok()) {
    out_.Log(LogLevel::kWarning, "refused ", protocol::ToString(hello.name), " of ", hello.host, ": ",
             refusal.message());
    out_.Add(control::Refuse{event.session, std::move(refusal)});
    return;
  }
  control ? rules_.commands->Attach(event.session, hello) : Accept(event);
}

void MembershipRule::Accept(const Attached& event) {
  const protocol::Hello& hello = event.hello;
  if (hello.name.role == protocol::Role::kTrainer) rules_.runs->TrainerJoins(hello);
  const Group& group = GroupFor(hello);
  AddWorker(event.session, hello, group);
  rules_.runs->RankServed(*roster_.Find(event.session));
  out_.Send(event.session,
            protocol::Welcome{
                .term = config_.term, .run = rules_.runs->run(), .lease_seconds = Seconds(config_.lease)});
  if (group.controlled) out_.Send(event.session, protocol::Controlled{});
  out_.Log(LogLevel::kInfo, protocol::ToString(hello.name), " joined from ", hello.host, " (", group.members,
           " of ", group.world_size, ")");
  if (!IsComplete(group)) return;
  GroupChange(roster_, group.id).SetLoss(Status::Ok());
  rules_.opening->ForgetFailures(group.id);
  if (group.id != kTrainers) state_.engine_loss = Status::Ok();
}

void MembershipRule::OnResumed(const Worker& worker) {
  WorkerChange(roster_, worker).SetConnected(true);
  // It hears now of the run that began meanwhile.
  if (worker.group == kTrainers) rules_.runs->Join(worker.rank, worker.incarnation);
  out_.Log(LogLevel::kInfo, TextOf(roster_, worker), " is back");
}

void MembershipRule::OnLandingMap(const Worker& worker) {
  WorkerChange(roster_, worker).SetLanded();
  rules_.planning->Changed(worker);
}

void MembershipRule::OnRegister(const Worker& worker, const protocol::Register& message) {
  for (const Version& version : {message.version, message.newest, message.landed})
    if (const Status status = rules_.runs->Check(version); !status.ok())
      return Refuse(worker.session, status);
  rules_.planning->Changed(worker);
  WorkerChange(roster_, worker).SetRegistered(message);
  if (worker.group == kTrainers) return;
  if (message.controlled) GroupChange(roster_, worker.group).SetControlled();
  rules_.runs->RankServed(worker);
  rules_.updates->BeginAgain(worker, "registered its tensors again");
}

void MembershipRule::OnSuspended(const Worker& rank) {
  WorkerChange(roster_, rank).SetSuspended();
  rules_.planning->Changed(rank);
  rules_.planning->Unplan(rank.group, /*sleeps=*/true);
  out_.Log(LogLevel::kInfo, TextOf(roster_, rank), " is suspended");
  rules_.updates->BeginAgain(rank, "was suspended");
}

// --- Going ----------------------------------------------------------------------------------------------

void MembershipRule::Lose(SessionId session, const Status& reason, const std::vector<SessionId>& with_it) {
  const Worker* found = roster_.Find(session);
  if (found == nullptr) return;
  const Worker worker = *found;
  const protocol::WorkerName name = NameOf(roster_, worker);
  const Group& group = *roster_.FindGroup(worker.group);
  if (IsComplete(group)) {
    GroupChange(roster_, group.id).SetLoss(reason);
    if (group.id != kTrainers) state_.engine_loss = reason;
  }
  GroupChange(roster_, group.id).SetLastError(reason);
  rules_.last_error = reason;
  rules_.planning->Lose(worker);
  rules_.deadlines->Lose(group.id);
  roster_.Remove(session);
  out_.LogLoss(reason);
  SendAll lost{.to = {}, .message = protocol::Lost{.name = name, .reason = reason}};
  for (const Worker& other : roster_.workers())
    if (!std::ranges::binary_search(with_it, other.session)) lost.to.push_back(other.session);
  if (!lost.to.empty()) out_.Add(std::move(lost));
  rules_.updates->Lose(worker, reason);
}

void MembershipRule::Refuse(const std::vector<SessionId>& sessions, const Status& reason) {
  std::vector<SessionId> with_it = sessions;
  std::ranges::sort(with_it);
  for (const SessionId session : sessions) {
    if (roster_.Find(session) != nullptr) out_.Add(control::Refuse{session, reason});
  }
  for (const SessionId session : sessions) {
    const Worker* worker = roster_.Find(session);
    if (worker == nullptr) continue;
    Lose(session, Error(reason.code(), TextOf(roster_, *worker), " was refused: ", reason.message()),
         with_it);
  }
}

const Status& MembershipRule::engine_loss() const { return state_.engine_loss; }

void MembershipRule::OnBroken(const Worker& worker) {
  WorkerChange(roster_, worker).SetConnected(false);
  out_.Log(LogLevel::kInfo, TextOf(roster_, worker), ": connection broken; lost in ", Seconds(config_.lease),
           " s unless it comes back");
}

void MembershipRule::OnGone(const Worker& worker, const Status& reason) {
  const SessionId session = worker.session;
  const Status loss = Error(reason.code(), TextOf(roster_, worker), " is lost: ", reason.message());
  out_.Add(Forget{session});
  Lose(session, loss);
}

void MembershipRule::OnLeave(const Worker& worker) {
  // A worker that leaves after a failure should not hide it.
  const auto is_failure = [](const Status& status) {
    return !status.ok() && status.code() != Code::kCancelled;
  };
  const SessionId session = worker.session;
  const Status& own = roster_.FindGroup(worker.group)->last_error;
  const Status& before = is_failure(own) ? own : roster_.trainers().loss;
  const Status reason =
      Error(Code::kCancelled, TextOf(roster_, worker), " has left",
            is_failure(before) ? StrCat(", after: ", before.message()) : "; start it again to go on");
  out_.Add(Forget{session});
  Lose(session, reason);
}

void MembershipRule::RefuseMessage(const Worker& worker, std::string_view message) {
  Refuse(worker.session,
         Error(Code::kProtocol, TextOf(roster_, worker), " sent ", message,
               ", a message that its role does not send; use the same weightcast on all hosts"));
}

// --- The time to become whole ---------------------------------------------------------------------------

void MembershipRule::ForgetEmptyGroups() {
  if (roster_.empty_groups() <= kEmptyEnginesKept) return;
  size_t empty = 0;
  for (size_t i = roster_.groups().size(); i-- > 1;) {
    const Group& group = roster_.groups()[i];
    const bool needed = rules_.engines->Of(group.id) != nullptr || group.control.session != 0;
    const bool joins = state_.join_timers.Of(group.id);
    if (needed || joins || group.members != 0 || ++empty <= kEmptyEnginesKept) continue;
    const GroupId id = group.id;
    roster_.RemoveGroup(id);
    state_.join_timers.Remove(id);
    rules_.planning->ForgetGroup(id);
    rules_.opening->ForgetGroup(id);
    rules_.deadlines->ForgetGroup(id);
  }
}

bool MembershipRule::IsWaiting(const Group& group) const {
  if (group.members == 0 || rules_.planning->Of(group.id).planned) return false;
  // During an update nobody is planned, so a whole group waits for us, not for others. Ranks that
  // sleep will come back.
  const bool sleepers = roster_.suspended() != 0;
  return !rules_.engines->IsBusy(group.id) && !rules_.planning->Of(group.id).left_out &&
         !(rules_.updates->open() && IsWhole(group)) &&
         !(sleepers && (group.id == kTrainers || IsSuspended(group)));
}

void MembershipRule::ArmJoinTimers() {
  for (const GroupId id : roster_.touched().Among(roster_.groups())) {
    const bool wanted = IsWaiting(*roster_.FindGroup(id));
    if (wanted == state_.join_timers.Of(id)) continue;
    roster_.touched().Add(id);
    state_.join_timers.Edit(id) = wanted;
    out_.ArmOrDisarm(wanted, TimerKind::kJoin, id, config_.join_timeout);
  }
}

Status MembershipRule::WhyStillWaiting(const Group& group) const {
  const std::string limit =
      StrCat(" within ", Seconds(config_.join_timeout), " s (setting join_timeout of the controller)");
  if (!IsComplete(group))
    return Error(Code::kTimedOut, "missing: ", MissingMembers(group), " of ", group.world_size,
                 " did not join", limit, "; start what is missing, or correct world_size");
  for (const SessionId session : MembersOf(group)) {
    const Worker& worker = *roster_.Find(session);
    if (!(worker.registered && (group.id == kTrainers || worker.landed)))
      return Error(Code::kTimedOut, TextOf(roster_, worker), " has not registered its tensors", limit,
                   "; see its log, and if it only loads, let it join later or raise that setting");
  }
  if (group.controlled && group.control.session == 0)
    return Error(Code::kTimedOut, "the EngineControl of engine ", group.name, " did not come back", limit,
                 "; start the engine's front end again");
  if (group.id == kTrainers) return WhyNoPlan(limit);
  const Group& trainers = roster_.trainers();
  if (trainers.world_size == 0 || trainers.members == 0)
    return Error(Code::kTimedOut, "no trainer has joined", limit, "; start the trainers");
  return {Code::kTimedOut, IsComplete(trainers) ? StrCat("the trainers have not registered their tensors",
                                                         limit, "; see their logs")
                                                : StrCat("missing: ", MissingMembers(trainers),
                                                         " did not join", limit, "; start what is missing")};
}

Status MembershipRule::WhyNoPlan(const std::string& limit) const {
  std::string engines;
  for (const Group& engine : roster_.groups())
    if (engine.id != kTrainers && engine.members != 0 && !IsComplete(engine))
      engines += StrCat(engines.empty() ? "; missing: " : "; ", MissingMembers(engine));
  const Status& lost = state_.engine_loss;
  return Error(Code::kTimedOut, "no plan: fewer than ", config_.min_engines, " engines have all their ranks",
               limit, engines, lost.ok() ? "" : StrCat("; the last engine was lost: ", lost.message()),
               "; start the inference ranks, or lower setting min_engines");
}

void MembershipRule::OnJoinTimer(GroupId id) {
  const Group* group = roster_.FindGroup(id);
  if (group == nullptr || !state_.join_timers.Of(id)) return;
  roster_.touched().Add(id);
  state_.join_timers.Edit(id) = false;
  const Status reason = WhyStillWaiting(*group);
  out_.Log(LogLevel::kError, TextOf(*group), ": ", reason.message());
  Refuse(MembersOf(*group), reason);
}

}  // namespace weightcast::control
