#include "control/roster_facts.h"

#include "base/strings.h"

namespace weightcast::control {

using protocol::EngineState;

const Worker* WorkerAt(const Roster& roster, const Group& group, uint32_t rank) {
  return rank < group.ranks.size() && group.ranks[rank] != 0 ? roster.Find(group.ranks[rank]) : nullptr;
}

std::vector<SessionId> MembersOf(const Group& group) {
  std::vector<SessionId> members;
  members.reserve(group.members);
  for (const SessionId session : group.ranks)
    if (session != 0) members.push_back(session);
  std::ranges::sort(members);
  return members;
}

protocol::WorkerName NameOf(const Roster& roster, const Worker& worker) {
  const Group* group = roster.FindGroup(worker.group);
  return {.role = worker.group == kTrainers ? protocol::Role::kTrainer : protocol::Role::kInference,
          .engine = group == nullptr ? std::string() : group->name,
          .rank = worker.rank};
}

std::string TextOf(const Roster& roster, const Worker& worker) {
  return protocol::ToString(NameOf(roster, worker));
}

std::string TextOf(const Group& group) {
  return group.id == kTrainers ? "the trainers" : StrCat("engine ", group.name);
}

Version NewestOf(const Roster& roster, const Group& group) {
  Version newest;
  for (const SessionId session : group.ranks)
    if (session != 0) newest = protocol::LaterOf(newest, roster.Find(session)->newest);
  return newest;
}

bool TakesBack(const Roster& roster, const Group& group, const Version& version) {
  return AnyMember(roster, group, [&](const Worker& worker) { return TakesBack(worker, version); });
}

bool TakesBack(const Worker& rank, const Version& version) {
  const Version& newest = rank.newest;
  const bool unclear = newest.run == version.run && newest.origin != version.origin;
  return newest.number >= 0 && (protocol::RunAndNumber(version) < protocol::RunAndNumber(newest) || unclear);
}

EngineState EngineStateOf(const Group& group) {
  static constexpr EngineState kLeastFirst[] = {
      EngineState::kFailed, EngineState::kSuspended, EngineState::kJoining, EngineState::kUpdating,
      EngineState::kReady,  EngineState::kCommitted, EngineState::kServing};
  if (!IsComplete(group)) return group.loss.ok() ? EngineState::kJoining : EngineState::kFailed;
  for (const EngineState state : kLeastFirst)
    if (group.counts.states[static_cast<size_t>(state)] != 0) return state;
  return EngineState::kJoining;
}

bool IsLastPart(const Roster& roster, GroupId engine, uint32_t part) {
  const auto& ranks = roster.FindGroup(engine)->ranks;
  const auto rank = std::ranges::find_if(ranks, [](SessionId session) { return session != 0; });
  return rank == ranks.end() || part + 1 >= roster.Find(*rank)->parts;
}

int64_t CommonOffer(const Roster& roster) {
  return IsComplete(roster.trainers()) ? roster.offers().Common() : -1;
}

std::vector<SessionId> Present(const Roster& roster, std::span<const SessionId> sessions) {
  std::vector<SessionId> here;
  here.reserve(sessions.size());
  for (const SessionId session : sessions)
    if (roster.Find(session) != nullptr) here.push_back(session);
  return here;
}

}  // namespace weightcast::control
