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
  return {Code::kInvalidArgument, StrCat("the worker tells of run ", run, "; at most ", protocol::kMaxRun,
                                         " is allowed: start it again as a new process")};
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
  if (hello.world_size == 0 || hello.world_size > protocol::kMaxWorkers)
    return {Code::kInvalidArgument, StrCat("a world size of ", hello.world_size,
                                           " is not possible; give the number of ranks, at least 1")};
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
  for (const Group& group : s_.groups) {
    if (group.name != hello.name.engine || group.members == 0) continue;
    if (group.world_size != hello.world_size)
      return {Code::kInvalidArgument,
              StrCat(protocol::ToString(hello.name), " gives a world size of ", hello.world_size, " for ",
                     NameOf(group), "; those already here say ", group.world_size, ": give all the same")};
  }
  return Status::Ok();
}

Status Machine::TakePlace(const protocol::Hello& hello) {
  const auto holder = std::find_if(s_.workers.begin(), s_.workers.end(), [&](const Worker& worker) {
    return worker.rank == hello.name.rank && NameOf(worker) == hello.name;
  });
  if (holder == s_.workers.end()) return Status::Ok();
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
  const auto known = std::find_if(s_.groups.begin(), s_.groups.end(),
                                  [&](const Group& group) { return group.name == hello.name.engine; });
  const bool control = hello.name.role == protocol::Role::kControl;
  if (known == s_.groups.end()) {
    Group group;
    group.id = s_.next_group++;
    group.name = hello.name.engine;
    if (!control) group.world_size = hello.world_size;
    return s_.groups.emplace_back(std::move(group));
  }
  if (known->members == 0 && !control) known->world_size = hello.world_size;
  return *known;
}

void Machine::RaiseRun(const protocol::Run& run, const Status& reason) {
  FailWaiting(reason, true);
  s_.run = run;
  s_.withdrawn = {};
  s_.groups.front().loss = Status::Ok();  // Who comes first waits for the others.
  for (Worker& worker : s_.workers) worker.offered = -1;
  s_.plan.stale = true;  // The next Plan tells trainers that stayed.
}

void Machine::NewRunIfReplaced(const protocol::Hello& hello) {
  const Status reason(
      Code::kUnavailable,
      StrCat(protocol::ToString(hello.name),
             " was started again as a new process; publish the state that the trainers agree on"));
  const auto before = std::find_if(s_.run_members.begin(), s_.run_members.end(),
                                   [&](const RunMember& member) { return member.rank == hello.name.rank; });
  const bool known = before != s_.run_members.end();
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
  const bool known = std::any_of(s_.run_members.begin(), s_.run_members.end(),
                                 [&](const RunMember& member) { return member.rank == rank; });
  if (!known) s_.run_members.push_back({.rank = rank, .incarnation = incarnation});
}

bool Machine::IsOver(const protocol::Run& run) const {
  return std::any_of(s_.groups.begin(), s_.groups.end(), [&](const Group& group) {
    return group.id != kTrainers &&
           TakesBack(group, protocol::VersionOf(run, std::numeric_limits<int64_t>::max()));
  });
}

/// A version of another controller, which counted runs by itself, is of another run even if the number is the
/// same. Trainers that are here stay members of the run that is raised.
void Machine::NewRunIfServed(const Worker& rank) {
  s_.run_seen = std::max(s_.run_seen, rank.newest.run);
  if (s_.run.number == 0 || !IsOver(s_.run)) return;
  BeginRun(s_.run_seen, {Code::kUnavailable,
                         StrCat("the update is withdrawn, because ", TextOf(rank), " has served version ",
                                ToString(rank.newest),
                                " of an earlier controller and a new run begins; publish the next version")});
}

void Machine::OnRegister(Worker& worker, const protocol::Register& message) {
  for (const Version& version : {message.version, message.newest, message.landed})
    if (const Status status = CheckVersion(version); !status.ok())
      return RefuseWorker(worker.session, status);
  worker.registered = true;
  worker.landed = false;
  s_.plan.stale = s_.plan.stale || InPlan(worker);
  worker.hold = false;  // What a trainer held is not in this memory.
  if (worker.group == kTrainers) return;
  worker.landing = message.landing;
  worker.parts = message.parts;
  worker.shares = message.shares;
  worker.holds = message.landed;
  Group& group = *FindGroup(worker.group);
  group.controlled = group.controlled || message.controlled;
  worker.newest = protocol::LaterOf(protocol::LaterOf(worker.newest, message.version), message.newest);
  TakeState(worker, message.state, message.version);
  NewRunIfServed(worker);
  BeginAgain(worker, "registered its tensors again");
}

void Machine::OnSuspended(Worker& rank) {
  rank.registered = rank.landed = false;
  rank.state = protocol::EngineState::kSuspended;
  rank.version = rank.holds = {};
  s_.plan.stale = s_.plan.stale || InPlan(rank);
  FindGroup(rank.group)->planned = false;
  Log(LogLevel::kInfo, TextOf(rank), " is suspended");
  BeginAgain(rank, "was suspended");
}

void Machine::Admit(SessionId session, const protocol::Hello& hello, Group& group) {
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
  const auto at = std::find_if(s_.workers.begin(), s_.workers.end(),
                               [&](const Worker& other) { return other.session > session; });
  s_.workers.insert(at, worker);
  ++group.members;
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
  Group& group = *FindGroup(worker.group);
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
  --group.members;
  s_.workers.erase(s_.workers.begin() + (found - s_.workers.data()));
  const bool polite = reason.code() == Code::kCancelled;
  LogAndCount(polite ? "control.workers_left" : "control.workers_lost",
              polite ? LogLevel::kInfo : LogLevel::kWarning, reason.message());
  for (const Worker& other : s_.workers) {
    if (std::find(with_it.begin(), with_it.end(), other.session) == with_it.end())
      Tell(other.session, protocol::Lost{.name = name, .reason = reason});
  }
  if (s_.update) UpdateLoses(worker, reason);
}

void Machine::RefuseWorker(SessionId session, const Status& reason) { RefuseWorkers({session}, reason); }

void Machine::RefuseWorkers(const std::vector<SessionId>& sessions, const Status& reason) {
  for (const SessionId session : sessions) {
    if (Find(session) != nullptr) actions_.push_back(Refuse{session, reason});
  }
  for (const SessionId session : sessions) {
    const Worker* worker = Find(session);
    if (worker == nullptr) continue;
    Lose(session, {reason.code(), StrCat(TextOf(*worker), " was refused: ", reason.message())}, sessions);
  }
}

void Machine::RefuseGroup(GroupId id, const Status& reason) {
  std::vector<SessionId> members;
  for (const Worker& worker : s_.workers)
    if (worker.group == id) members.push_back(worker.session);
  RefuseWorkers(members, reason);
}

void Machine::ForgetEmptyGroups() {
  size_t empty = 0;
  for (size_t i = s_.groups.size(); i-- > 1;) {
    const Group& group = s_.groups[i];
    const bool needed = TargetOf(group.id) != nullptr || group.steering.session != 0;
    if (needed || group.join_timer || group.members != 0 || ++empty <= kEmptyEnginesKept) continue;
    s_.groups.erase(s_.groups.begin() + static_cast<ptrdiff_t>(i));
  }
}

void Machine::ArmJoinTimers() {
  const bool sleepers = std::any_of(s_.workers.begin(), s_.workers.end(), [](const Worker& worker) {
    return worker.state == protocol::EngineState::kSuspended;
  });
  for (Group& group : s_.groups) {
    // During an update nobody is planned, so a whole group waits for us, not for others. Whoever sleeps will
    // come back.
    const Target* target = TargetOf(group.id);
    const bool busy =
        target != nullptr && target->step != EngineStep::kOut && target->step != EngineStep::kDone;
    const bool waits = busy || group.left_out || (s_.update && Whole(group)) ||
                       (sleepers && (group.id == kTrainers || IsSuspended(group)));
    const bool wanted = !group.planned && group.members != 0 && !waits;
    if (wanted == group.join_timer) continue;
    group.join_timer = wanted;
    if (wanted) {
      Arm(TimerKind::kJoin, group.id, config_.join_timeout);
    } else {
      Disarm(TimerKind::kJoin, group.id);
    }
  }
}

std::string Machine::MissingMembers(const Group& group) const {
  std::vector<bool> here(group.world_size);
  for (const Worker& worker : s_.workers)
    if (worker.group == group.id) here[worker.rank] = true;
  std::string names;
  size_t missing = 0;
  for (uint32_t rank = 0; rank < group.world_size; ++rank) {
    if (here[rank] || ++missing > kNamesInMessage) continue;
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
  for (const Worker& worker : s_.workers) {
    if (worker.group == group.id && !(worker.registered && (group.id == kTrainers || worker.landed)))
      return {Code::kTimedOut,
              StrCat(TextOf(worker), " has not registered its tensors", limit, "; see its log")};
  }
  if (group.controlled && group.steering.session == 0)
    return {Code::kTimedOut, StrCat("the EngineControl of engine ", group.name, " did not come back", limit,
                                    "; start the engine's front end again")};
  if (group.id != kTrainers) {
    const Group& trainers = s_.groups.front();
    return {Code::kTimedOut,
            trainers.world_size == 0 || s_.groups.front().members == 0
                ? StrCat("no trainer has joined", limit, "; start the trainers")
                : StrCat(Complete(trainers) ? "the trainers have not registered their tensors"
                                            : StrCat("missing: ", MissingMembers(trainers), " did not join"),
                         limit, Complete(trainers) ? "; see their logs" : "; start it")};
  }
  std::string engines;
  for (const Group& engine : s_.groups)
    if (engine.id != kTrainers && engine.members != 0 && !Complete(engine))
      engines += StrCat(engines.empty() ? "; missing: " : "; ", MissingMembers(engine));
  const std::string last = s_.engine_loss.ok() ? "" : StrCat("; the last: ", s_.engine_loss.message());
  return {Code::kTimedOut,
          StrCat("no plan: fewer than ", config_.min_engines, " engines have all their ranks", limit,
                 engines.empty() ? "; start the inference side" : engines, last)};
}

void Machine::OnJoinTimer(GroupId id) {
  Group* group = FindGroup(id);
  if (group == nullptr || !group->join_timer) return;
  group->join_timer = false;
  const Status reason = WhyStillWaiting(*group);
  Log(LogLevel::kError, NameOf(*group), ": ", reason.message());
  RefuseGroup(id, reason);
}

}  // namespace weightcast::control
