#include <algorithm>
#include <limits>

#include "control/machine.h"
#include "protocol/limits.h"

// Who is there: Hello, groups and their time limit, loss.
namespace weightcast::control {
namespace {

/// Engines without a rank whose last error is still shown.
constexpr size_t kEmptyEnginesKept = 32;
constexpr size_t kNamesInMessage = 8;
/// The roster keeps a place for each rank, also of those that have not come.
constexpr uint32_t kMaxWorldSize = uint32_t{1} << 16;

/// What a rank says of itself. Only what it serves counts: an update it was in is void.
void TakeState(Worker& worker, protocol::EngineState state, const Version& version) {
  worker.version = version;
  const bool kept = state == protocol::EngineState::kJoining || state == protocol::EngineState::kSuspended;
  worker.state = version.number >= 0 ? protocol::EngineState::kServing
                 : kept              ? state
                                     : protocol::EngineState::kFailed;
}

}  // namespace

/// Of a run that this controller has not counted itself.
Status Machine::CheckRun(uint64_t run, uint64_t origin) const {
  const bool counted_here = origin == config_.term.id && run <= s_.run.number;
  if (run <= protocol::kMaxRun || counted_here) return Status::Ok();
  return {Code::kInvalidArgument,
          StrCat("the worker's run number ", run, " is above the highest that is allowed, ",
                 protocol::kMaxRun, "; start it again as a new process")};
}

Status Machine::CheckVersion(const Version& version) const { return CheckRun(version.run, version.origin); }

Status Machine::CheckHello(const protocol::Hello& hello) const {
  if (hello.job != config_.job)
    return {Code::kInvalidArgument,
            StrCat("this controller serves job '", config_.job, "', not '", hello.job,
                   "'; set the same WEIGHTCAST_JOB everywhere or use another controller")};
  WC_RETURN_IF_ERROR(CheckRun(hello.run.number, hello.run.origin));
  WC_RETURN_IF_ERROR(CheckVersion(hello.version));
  WC_RETURN_IF_ERROR(CheckVersion(hello.newest));
  const bool trainer = hello.name.role == protocol::Role::kTrainer;
  if (trainer != hello.name.engine.empty())
    return {Code::kInvalidArgument, trainer
                                        ? "a trainer was given an engine's name; give it none"
                                        : "an inference rank was given no name of its engine; set engine"};
  if (hello.world_size == 0 || hello.world_size > kMaxWorldSize)
    return {Code::kInvalidArgument,
            StrCat("a world size of ", hello.world_size,
                   " is not possible; give the number of ranks, from 1 to ", kMaxWorldSize)};
  if (hello.name.role == protocol::Role::kControl)
    return hello.world_size == 1 && hello.name.rank == 0
               ? Status::Ok()
               : Status(Code::kInvalidArgument,
                        StrCat(protocol::ToString(hello.name), " has rank ", hello.name.rank, " of ",
                               hello.world_size, "; an EngineControl must be rank 0 of 1: give it no other"));
  if (hello.name.rank >= hello.world_size)
    return {Code::kInvalidArgument, StrCat(protocol::ToString(hello.name), " is not among 0 .. ",
                                           hello.world_size - 1, ": the world size is ", hello.world_size,
                                           "; give it a rank from 0 on, or correct world_size")};
  const Group* group = s_.roster.Named(hello.name.engine);
  if (group != nullptr && group->members != 0 && group->world_size != hello.world_size)
    return {Code::kInvalidArgument,
            StrCat(protocol::ToString(hello.name), " gives a world size of ", hello.world_size, " for ",
                   NameOf(*group), "; those already here say ", group->world_size, ": give all the same")};
  return Status::Ok();
}

Status Machine::TakePlace(const protocol::Hello& hello) {
  const Group* group = s_.roster.Named(hello.name.engine);
  const Worker* holder = group == nullptr ? nullptr : s_.roster.MemberOf(*group, hello.name.rank);
  if (holder == nullptr) return Status::Ok();
  const bool same_process = holder->incarnation == hello.incarnation;
  if (holder->connected && !same_process)
    return {Code::kInvalidArgument,
            StrCat("rank taken: ", protocol::ToString(hello.name),
                   " is already here in another process; give every process its own rank")};
  const Status reason(Code::kPeerDead,
                      StrCat(protocol::ToString(hello.name), " is lost: ",
                             same_process ? "its process has begun a new session; publish again"
                                          : "a new process has taken its place; publish again"));
  const SessionId old = holder->session;
  actions_.push_back(Forget{old});
  Lose(old, reason);
  return Status::Ok();
}

Group& Machine::GroupFor(const protocol::Hello& hello) {
  const Group* known = s_.roster.Named(hello.name.engine);
  Group& group = known == nullptr ? s_.roster.AddGroup(hello.name.engine) : Change(*known);
  const bool control = hello.name.role == protocol::Role::kControl;
  if (group.members == 0 && !control) s_.roster.SetWorldSize(group, hello.world_size);
  return group;
}

void Machine::RaiseRun(const protocol::Run& run, const Status& reason) {
  FailWaiting(reason, true);
  s_.run = run;
  s_.withdrawn = {};
  Change(s_.roster.trainers()).loss = Status::Ok();  // Who comes first waits for the others.
  for (const SessionId session : s_.roster.trainers().ranks)
    if (session != 0) Change(*Find(session))->offered = -1;
  s_.plan.stale = true;  // The next Plan tells trainers that stayed.
}

void Machine::NewRunIfReplaced(const protocol::Hello& hello) {
  const Status reason(
      Code::kUnavailable,
      StrCat(protocol::ToString(hello.name),
             " was started again as a new process; publish the state that the trainers agree on"));
  const auto before = std::ranges::lower_bound(s_.run_members, hello.name.rank, {}, &RunMember::rank);
  const bool known = before != s_.run_members.end() && before->rank == hello.name.rank;
  const protocol::Run run = s_.run;
  // Of two that come from different runs of earlier controllers, or from one and from none, one may have been
  // started after the other had published.
  const bool elsewhere =
      hello.run.origin != config_.term.id && hello.run != s_.run && hello.run != s_.run_before;
  if (run.number == 0) {
    s_.run_before = hello.run;
    const bool adopted = hello.run.number > 0 && hello.run.number >= s_.run_seen && !IsOver(hello.run);
    adopted ? RaiseRun(hello.run, reason) : BeginRun(s_.run_seen, reason);
  } else if (known ? before->incarnation != hello.incarnation : elsewhere) {
    s_.run_before = hello.run;
    BeginRun(std::max({run.number, hello.run.number, s_.run_seen}), reason);
  }
  if (s_.run != run) s_.run_members.clear();
  JoinRun(hello.name.rank, hello.incarnation);
}

/// Whoever is told of a run is part of it, even if it was here before it began: whoever replaces it is not.
void Machine::JoinRun(uint32_t rank, uint64_t incarnation) {
  const auto at = std::ranges::lower_bound(s_.run_members, rank, {}, &RunMember::rank);
  const bool known = at != s_.run_members.end() && at->rank == rank;
  if (!known) s_.run_members.insert(at, {.rank = rank, .incarnation = incarnation});
}

bool Machine::IsOver(const protocol::Run& run) const {
  return std::ranges::any_of(s_.roster.workers(), [&](const Worker& worker) { return IsOver(run, worker); });
}

bool Machine::IsOver(const protocol::Run& run, const Worker& rank) {
  return rank.group != kTrainers &&
         TakesBack(rank, protocol::VersionOf(run, std::numeric_limits<int64_t>::max()));
}

/// A version of another controller, which counted runs by itself, is of another run even if the number is the
/// same. Trainers that are here stay members of the run that is raised. What the other ranks have served does
/// not end the run: otherwise it would not have begun, or would be over since they told of it.
void Machine::NewRunIfServed(const Worker& rank) {
  s_.run_seen = std::max(s_.run_seen, rank.newest.run);
  if (s_.run.number == 0 || !IsOver(s_.run, rank)) return;
  BeginRun(s_.run_seen, {Code::kUnavailable,
                         StrCat("the update is withdrawn, because ", TextOf(rank), " has served version ",
                                ToString(rank.newest),
                                " of an earlier controller and a new run begins; publish the next version")});
}

void Machine::OnRegister(const Worker& worker, const protocol::Register& message) {
  for (const Version& version : {message.version, message.newest, message.landed})
    if (const Status status = CheckVersion(version); !status.ok())
      return RefuseWorker(worker.session, status);
  s_.plan.stale = s_.plan.stale || InPlan(worker);
  {
    auto edit = Change(worker);
    edit->registered = true;
    edit->landed = false;
    edit->hold = false;  // What a trainer held is not in this memory.
    if (worker.group == kTrainers) return;
    edit->landing = message.landing;
    edit->parts = message.parts;
    edit->shares = message.shares;
    edit->holds = message.landed;
    edit->newest = protocol::LaterOf(protocol::LaterOf(worker.newest, message.version), message.newest);
    TakeState(*edit.operator->(), message.state, message.version);
  }
  if (message.controlled) ChangeGroup(worker.group).controlled = true;
  NewRunIfServed(worker);
  BeginAgain(worker, "registered its tensors again");
}

void Machine::OnSuspended(const Worker& rank) {
  {
    auto edit = Change(rank);
    edit->registered = edit->landed = false;
    edit->state = protocol::EngineState::kSuspended;
    edit->version = edit->holds = {};
  }
  s_.plan.stale = s_.plan.stale || InPlan(rank);
  ChangeGroup(rank.group).planned = false;
  Log(LogLevel::kInfo, TextOf(rank), " is suspended");
  BeginAgain(rank, "was suspended");
}

void Machine::Admit(SessionId session, const protocol::Hello& hello, const Group& group) {
  Worker worker;
  worker.session = session;
  worker.group = group.id;
  worker.rank = hello.name.rank;
  worker.incarnation = hello.incarnation;
  worker.landing = hello.landing;
  if (group.id != kTrainers) {
    worker.newest = protocol::LaterOf(hello.version, hello.newest);
    TakeState(worker, hello.state, hello.version);
  }
  s_.roster.Add(std::move(worker));
}

void Machine::On(const Attached& event) {
  const protocol::Hello& hello = event.hello;
  Status refusal = CheckHello(hello);
  const bool control = hello.name.role == protocol::Role::kControl;
  if (refusal.ok() && !control) refusal = TakePlace(hello);
  if (!refusal.ok()) {
    Log(LogLevel::kWarning, "refused ", protocol::ToString(hello.name), " of ", hello.host, ": ",
        refusal.message());
    actions_.push_back(Refuse{event.session, std::move(refusal)});
    Advance();
    return;
  }
  if (control) {
    AttachControl(event.session, hello);
    Advance();
    return;
  }
  if (hello.name.role == protocol::Role::kTrainer) NewRunIfReplaced(hello);
  Group& group = GroupFor(hello);
  Admit(event.session, hello, group);
  NewRunIfServed(*Find(event.session));
  Tell(event.session,
       protocol::Welcome{.term = config_.term, .run = s_.run, .lease_seconds = Seconds(config_.lease)});
  if (group.controlled) Tell(event.session, protocol::Controlled{});
  Log(LogLevel::kInfo, protocol::ToString(hello.name), " joined from ", hello.host, " (", group.members,
      " of ", group.world_size, ")");
  if (Complete(group)) {
    group.loss = Status::Ok();
    group.tries = 0;
    group.at_fault = false;
    if (group.id != kTrainers) s_.engine_loss = Status::Ok();
  }
  Advance();
}

void Machine::Lose(SessionId session, const Status& reason, const std::vector<SessionId>& with_it) {
  const Worker* found = Find(session);
  if (found == nullptr) return;
  const Worker worker = *found;
  const protocol::WorkerName name = NameOf(worker);
  Group& group = ChangeGroup(worker.group);
  if (Complete(group)) {
    group.loss = reason;
    group.planned = group.in_full_plan = false;
    group.in_plan = 0;
    if (group.id != kTrainers) s_.engine_loss = reason;
  }
  ForgetFailedPrepares(group);
  group.last_error = reason;
  s_.last_error = reason;
  if (group.grant_timer && TargetOf(group.id) == nullptr) DisarmStep(group.id);
  if (InPlan(worker)) s_.plan.stale = true;
  s_.roster.Remove(session);
  const bool polite = reason.code() == Code::kCancelled;
  LogAndCount(polite ? "control.workers_left" : "control.workers_lost",
              polite ? LogLevel::kInfo : LogLevel::kWarning, reason.message());
  SendAll lost{.to = {}, .message = protocol::Lost{.name = name, .reason = reason}};
  for (const Worker& other : s_.roster.workers())
    if (!std::ranges::binary_search(with_it, other.session)) lost.to.push_back(other.session);
  if (!lost.to.empty()) actions_.push_back(std::move(lost));
  if (s_.update) UpdateLoses(worker, reason);
}

void Machine::RefuseWorker(SessionId session, const Status& reason) { RefuseWorkers({session}, reason); }

void Machine::RefuseWorkers(const std::vector<SessionId>& sessions, const Status& reason) {
  std::vector<SessionId> with_it = sessions;
  std::ranges::sort(with_it);
  for (const SessionId session : sessions) {
    if (Find(session) != nullptr) actions_.push_back(Refuse{session, reason});
  }
  for (const SessionId session : sessions) {
    const Worker* worker = Find(session);
    if (worker == nullptr) continue;
    Lose(session, {reason.code(), StrCat(TextOf(*worker), " was refused: ", reason.message())}, with_it);
  }
}

void Machine::RefuseGroup(GroupId id, const Status& reason) {
  RefuseWorkers(s_.roster.MembersOf(*FindGroup(id)), reason);
}

void Machine::ForgetEmptyGroups() {
  if (s_.roster.empty_groups() <= kEmptyEnginesKept) return;
  size_t empty = 0;
  for (size_t i = s_.roster.groups().size(); i-- > 1;) {
    const Group& group = s_.roster.groups()[i];
    const bool needed = TargetOf(group.id) != nullptr || group.steering.session != 0;
    if (needed || group.join_timer || group.members != 0 || ++empty <= kEmptyEnginesKept) continue;
    s_.roster.RemoveGroup(group.id);
  }
}

void Machine::ArmJoinTimers() {
  const bool sleepers = s_.roster.suspended() != 0;
  for (const GroupId id : s_.roster.Touched()) {
    const Group& group = *FindGroup(id);
    // During an update nobody is planned, so a whole group waits for us, not for others. Whoever sleeps will
    // come back.
    const Target* target = TargetOf(group.id);
    const bool busy =
        target != nullptr && target->step != EngineStep::kOut && target->step != EngineStep::kDone;
    const bool waits = busy || group.left_out || (s_.update && Whole(group)) ||
                       (sleepers && (group.id == kTrainers || IsSuspended(group)));
    const bool wanted = !group.planned && group.members != 0 && !waits;
    if (wanted == group.join_timer) continue;
    Change(group).join_timer = wanted;
    if (wanted) {
      Arm(TimerKind::kJoin, group.id, config_.join_timeout);
    } else {
      Disarm(TimerKind::kJoin, group.id);
    }
  }
}

std::string Machine::MissingMembers(const Group& group) const {
  std::string names;
  size_t missing = 0;
  for (uint32_t rank = 0; rank < group.world_size; ++rank) {
    if (group.ranks[rank] != 0 || ++missing > kNamesInMessage) continue;
    names += StrCat(missing == 1 ? "" : ", ", rank);
  }
  if (missing > kNamesInMessage) names += StrCat(" and ", missing - kNamesInMessage, " more");
  return StrCat(group.id == kTrainers ? "trainer " : StrCat("engine ", group.name, " rank "), names);
}

Status Machine::WhyStillWaiting(const Group& group) const {
  const std::string limit = StrCat(" within ", Seconds(config_.join_timeout), " s (join_timeout)");
  if (!Complete(group))
    return {Code::kTimedOut, StrCat("missing: ", MissingMembers(group), " of ", group.world_size,
                                    " did not join", limit, "; start it or correct the world size")};
  for (const SessionId session : s_.roster.MembersOf(group)) {
    const Worker& worker = *Find(session);
    if (!(worker.registered && (group.id == kTrainers || worker.landed)))
      return {Code::kTimedOut,
              StrCat(TextOf(worker), " has not registered its tensors", limit, "; see its log")};
  }
  if (group.controlled && group.steering.session == 0)
    return {Code::kTimedOut, StrCat("the EngineControl of engine ", group.name, " did not come back", limit,
                                    "; start the engine's front end again")};
  if (group.id != kTrainers) {
    const Group& trainers = s_.roster.trainers();
    return {Code::kTimedOut,
            trainers.world_size == 0 || trainers.members == 0
                ? StrCat("no trainer has joined", limit, "; start the trainers")
                : StrCat(Complete(trainers) ? "the trainers have not registered their tensors"
                                            : StrCat("missing: ", MissingMembers(trainers), " did not join"),
                         limit, Complete(trainers) ? "; see their logs" : "; start it")};
  }
  std::string engines;
  for (const Group& engine : s_.roster.groups())
    if (engine.id != kTrainers && engine.members != 0 && !Complete(engine))
      engines += StrCat(engines.empty() ? "; missing: " : "; ", MissingMembers(engine));
  const std::string last = s_.engine_loss.ok() ? "" : StrCat("; the last: ", s_.engine_loss.message());
  return {Code::kTimedOut,
          StrCat("no plan: fewer than ", config_.min_engines, " engines have all their ranks", limit,
                 engines.empty() ? "; start the inference side" : engines, last)};
}

void Machine::OnJoinTimer(GroupId id) {
  const Group* group = FindGroup(id);
  if (group == nullptr || !group->join_timer) return;
  Change(*group).join_timer = false;
  const Status reason = WhyStillWaiting(*group);
  Log(LogLevel::kError, NameOf(*group), ": ", reason.message());
  RefuseGroup(id, reason);
}

}  // namespace weightcast::control
