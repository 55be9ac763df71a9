#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "control/roster.h"
#include "protocol/messages.h"

/// What follows from the roster alone. Every rule may ask.
namespace weightcast::control {

[[nodiscard]] inline bool IsComplete(const Group& group) {
  return group.world_size != 0 && group.members == group.world_size;
}
/// Complete, registered and landed.
[[nodiscard]] inline bool IsWhole(const Group& group) {
  const bool uncontrolled = group.controlled && group.control.session == 0;
  return IsComplete(group) && !uncontrolled && group.counts.ready == group.members;
}
/// A rank sleeps: the others wait for it as long as it likes.
[[nodiscard]] inline bool IsSuspended(const Group& group) { return group.counts.suspended != 0; }
/// Some rank has not answered an abort yet.
[[nodiscard]] inline bool IsFencing(const Group& group) { return group.counts.fencing != 0; }
/// Some rank switches in its user's call, which may begin late.
[[nodiscard]] inline bool HasShadow(const Group& group) { return group.counts.in_place != group.members; }

/// Of a group; nullptr: that rank is not here.
[[nodiscard]] const Worker* WorkerAt(const Roster& roster, const Group& group, uint32_t rank);
/// Those that are here, by session.
[[nodiscard]] std::vector<SessionId> MembersOf(const Group& group);
template <typename Is>
[[nodiscard]] bool AnyMember(const Roster& roster, const Group& group, const Is& is) {
  return std::ranges::any_of(group.ranks,
                             [&](SessionId session) { return session != 0 && is(*roster.Find(session)); });
}

[[nodiscard]] protocol::WorkerName NameOf(const Roster& roster, const Worker& worker);
[[nodiscard]] std::string TextOf(const Roster& roster, const Worker& worker);
/// "engine a", "the trainers".
[[nodiscard]] std::string TextOf(const Group& group);

/// The newest that any of its ranks has served.
[[nodiscard]] Version NewestOf(const Roster& roster, const Group& group);
/// The version is older than one that a rank of the engine has served, or cannot be told to be newer: its run
/// has that one's number, but another controller counted it.
[[nodiscard]] bool TakesBack(const Roster& roster, const Group& group, const Version& version);
[[nodiscard]] bool TakesBack(const Worker& rank, const Version& version);
[[nodiscard]] protocol::EngineState EngineStateOf(const Group& group);

/// Of an update to the engine. Its ranks have the same number of parts: the plan job ensures it.
[[nodiscard]] bool IsLastPart(const Roster& roster, GroupId engine, uint32_t part);

/// What all trainers offer once all are here; -1: nothing, or not the same.
[[nodiscard]] int64_t CommonOffer(const Roster& roster);
/// Those of them that are here.
[[nodiscard]] std::vector<SessionId> Present(const Roster& roster, std::span<const SessionId> sessions);

}  // namespace weightcast::control
