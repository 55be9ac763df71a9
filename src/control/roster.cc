#include "control/roster.h"

#include <algorithm>
#include <utility>

#include "control/roster_facts.h"

namespace weightcast::control {
namespace {

bool Serves(const Worker& worker) { return worker.state == protocol::EngineState::kServing; }

void Adjust(uint32_t& count, bool counts, int sign) {
  if (counts) count += static_cast<uint32_t>(sign);
}

auto GroupNameIn(const Roster& roster) {
  return [&roster](GroupId id) { return std::string_view(roster.FindGroup(id)->name); };
}

/// The version that all ranks of the complete group serve; otherwise none.
Version ServedBy(const Roster& roster, const Group& group) {
  const auto serving = group.counts.states[static_cast<size_t>(protocol::EngineState::kServing)];
  if (!IsComplete(group) || serving != group.members) return {};
  const Version& first = roster.Find(group.ranks.front())->version;
  for (const SessionId session : group.ranks)
    if (roster.Find(session)->version != first) return {};
  return first;
}

}  // namespace

// --- Look-ups -------------------------------------------------------------------------------------------

const Worker* Roster::Find(SessionId session) const {
  return FindSorted(workers_, session, &Worker::session);
}

const Group* Roster::FindGroup(GroupId id) const { return FindSorted(groups_, id, &Group::id); }

const Group* Roster::Named(std::string_view engine) const {
  const GroupId* id = FindSorted(by_name_, engine, GroupNameIn(*this));
  return id == nullptr ? nullptr : FindGroup(*id);
}

const Group* Roster::ControlledBy(SessionId session) const {
  const ControlOf* control = FindSorted(controls_, session, &ControlOf::session);
  return control == nullptr ? nullptr : FindGroup(control->group);
}

// --- Counts ---------------------------------------------------------------------------------------------

void Roster::Count(const Worker& worker, int sign) {
  const bool trainer = worker.group == kTrainers;
  const bool sleeps = worker.state == protocol::EngineState::kSuspended;
  GroupCounts& counts = Change(*FindGroup(worker.group)).counts;
  Adjust(counts.ready, worker.registered && (trainer || worker.landed), sign);
  Adjust(counts.suspended, sleeps, sign);
  Adjust(counts.fencing, worker.fencing.has_value(), sign);
  Adjust(counts.in_place, worker.landing == protocol::Landing::kInPlace, sign);
  Adjust(counts.states[static_cast<size_t>(worker.state)], true, sign);
  if (sleeps) {
    Adjust(suspended_, true, sign);
    touched_.Add(kTrainers);  // They wait for those who sleep.
  }
  Adjust(unprepared_, worker.planned != 0 && worker.planned == epoch_ && worker.prepared != epoch_, sign);
  if (trainer) sign > 0 ? offers_.Add(worker) : offers_.Remove(worker);
}

// --- Changes --------------------------------------------------------------------------------------------

Roster::Edit::Edit(Roster& roster, Worker& worker)
    : roster_(roster),
      worker_(worker),
      served_(Serves(worker)),
      run_(protocol::RunOf(worker.version)),
      number_(worker.version.number) {
  roster_.Count(worker_, -1);
}

Roster::Edit::~Edit() {
  roster_.Count(worker_, 1);
  const bool same = served_ == Serves(worker_) && run_ == protocol::RunOf(worker_.version) &&
                    number_ == worker_.version.number;
  if (same) return;
  Group& group = roster_.Change(*roster_.FindGroup(worker_.group));
  group.served = ServedBy(roster_, group);
}

Roster::Edit Roster::Change(const Worker& worker) { return {*this, const_cast<Worker&>(worker)}; }

Group& Roster::Change(const Group& group) {
  touched_.Add(group.id);
  return const_cast<Group&>(group);
}

const Group& Roster::AddGroup(std::string engine) {
  const auto at = std::ranges::lower_bound(by_name_, std::string_view(engine), {}, GroupNameIn(*this));
  by_name_.insert(at, next_group_);
  Group& group = groups_.emplace_back();
  group.id = next_group_++;
  group.name = std::move(engine);
  touched_.Add(group.id);
  return group;
}

void Roster::RemoveGroup(GroupId id) {
  std::erase(by_name_, id);
  groups_.erase(groups_.begin() + (FindGroup(id) - groups_.data()));
}

void Roster::SetWorldSize(const Group& listed, uint32_t world_size) {
  Group& group = Change(listed);
  group.world_size = world_size;
  group.ranks.resize(world_size);
}

void Roster::SetControl(const Group& listed, const Control& control) {
  Group& group = Change(listed);
  if (group.control.session != 0) {
    const auto old = std::ranges::lower_bound(controls_, group.control.session, {}, &ControlOf::session);
    controls_.erase(old);
  }
  group.control = control;
  if (control.session == 0) return;
  const auto at = std::ranges::lower_bound(controls_, control.session, {}, &ControlOf::session);
  controls_.insert(at, {.session = control.session, .group = group.id});
}

const Worker& Roster::Add(Worker worker) {
  Group& group = Change(*FindGroup(worker.group));
  if (group.members++ == 0 && group.id != kTrainers) ++inhabited_;
  group.ranks[worker.rank] = worker.session;
  const auto at = std::ranges::lower_bound(workers_, worker.session, {}, &Worker::session);
  const Worker& added = *workers_.insert(at, std::move(worker));
  Count(added, 1);
  group.served = ServedBy(*this, group);
  return added;
}

void Roster::Remove(SessionId session) {
  const Worker& worker = *Find(session);
  Group& group = Change(*FindGroup(worker.group));
  Count(worker, -1);
  if (--group.members == 0 && group.id != kTrainers) --inhabited_;
  group.ranks[worker.rank] = 0;
  workers_.erase(workers_.begin() + (&worker - workers_.data()));
  group.served = ServedBy(*this, group);
}

void Roster::BeginEpoch(uint32_t epoch) {
  epoch_ = epoch;
  unprepared_ = 0;
  touched_.AddAll();
}

}  // namespace weightcast::control
