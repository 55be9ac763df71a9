#include "control/run_rule.h"

#include <algorithm>
#include <limits>

#include "control/group_change.h"
#include "control/roster_facts.h"
#include "control/run_state.h"
#include "protocol/limits.h"

namespace weightcast::control {

const protocol::Run& RunRule::run() const { return state_.run; }

Status RunRule::Check(const protocol::Run& run) const {
  const bool counted_here = run.origin == config_.term.id && run.number <= state_.run.number;
  if (run.number <= protocol::kMaxRun || counted_here) return Status::Ok();
  return Error(Code::kInvalidArgument, "this worker says that trainers have been started again ", run.number,
               " times (its run number); at most ", protocol::kMaxRun,
               " is allowed: end it and start a new process");
}

void RunRule::Raise(const protocol::Run& run, const Status& reason) {
  rules_.publications->EndRun(reason);
  state_.run = run;
  GroupChange(roster_, kTrainers).SetLoss(Status::Ok());  // Who comes first waits for the others.
  rules_.planning->MarkStale();                           // The next Plan tells trainers that stayed.
}

void RunRule::TrainerJoins(const protocol::Hello& hello) {
  const Status reason =
      Error(Code::kUnavailable, protocol::ToString(hello.name),
            " was started again as a new process; publish the state that the trainers agree on");
  const RunMember* before = FindSorted(state_.members, hello.name.rank, &RunMember::rank);
  const protocol::Run run = state_.run;
  // Of two that come from different runs of earlier controllers, or from one and from none, one may have been
  // started after the other had published.
  const bool elsewhere =
      hello.run.origin != config_.term.id && hello.run != state_.run && hello.run != state_.before;
  if (run.number == 0) {
    state_.before = hello.run;
    const bool adopted = hello.run.number > 0 && hello.run.number >= state_.seen && !IsOver(hello.run);
    adopted ? Raise(hello.run, reason) : Begin(state_.seen, reason);
  } else if (before != nullptr ? before->incarnation != hello.incarnation : elsewhere) {
    state_.before = hello.run;
    Begin(std::max({run.number, hello.run.number, state_.seen}), reason);
  }
  if (state_.run != run) state_.members.clear();
  Join(hello.name.rank, hello.incarnation);
}

void RunRule::Join(uint32_t rank, uint64_t incarnation) {
  const auto at = std::ranges::lower_bound(state_.members, rank, {}, &RunMember::rank);
  const bool known = at != state_.members.end() && at->rank == rank;
  if (!known) state_.members.insert(at, {.rank = rank, .incarnation = incarnation});
}

bool RunRule::IsOver(const protocol::Run& run) const {
  return std::ranges::any_of(roster_.workers(), [&](const Worker& worker) { return IsOver(run, worker); });
}

bool RunRule::IsOver(const protocol::Run& run, const Worker& rank) {
  return rank.group != kTrainers &&
         TakesBack(rank, protocol::VersionOf(run, std::numeric_limits<int64_t>::max()));
}

/// A version of another controller, which counted runs by itself, is of another run even if the number is the
/// same. Trainers that are here stay members of the run that is raised. What the other ranks have served does
/// not end the run: otherwise it would not have begun, or would be over since they told of it.
void RunRule::RankServed(const Worker& rank) {
  state_.seen = std::max(state_.seen, rank.newest.run);
  if (state_.run.number == 0 || !IsOver(state_.run, rank)) return;
  Begin(state_.seen, Error(Code::kUnavailable, "the update is withdrawn, because ", TextOf(roster_, rank),
                           " has served version ", ToString(rank.newest),
                           " of an earlier controller and a new run begins; publish the next version"));
}

}  // namespace weightcast::control
