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

}  // namespace

Roster::Roster() {
  groups_.emplace_back();
  by_name_.push_back(kTrainers);
}

// --- Look-ups -------------------------------------------------------------------------------------------

const Worker* Roster::Find(SessionId session) const {
  const auto at = std::ranges::lower_bound(workers_, session, {}, &Worker::session);
  return at != workers_.end() && at->session == session ? &*at : nullptr;
}

const Group* Roster::FindGroup(GroupId id) const {
  const auto at = std::ranges::lower_bound(groups_, id, {}, &Group::id);
  return at != groups_.end() && at->id == id ? &*at : nullptr;
}

const Group* Roster::Named(std::string_view engine) const {
  const auto name = [this](GroupId id) { return std::string_view(FindGroup(id)->name); };
  const auto at = std::ranges::lower_bound(by_name_, engine, {}, name);
  return at != by_name_.end() && name(*at) == engine ? FindGroup(*at) : nullptr;
}

const Worker* Roster::MemberOf(const Group& group, uint32_t rank) const {
  return rank < group.ranks.size() && group.ranks[rank] != 0 ? Find(group.ranks[rank]) : nullptr;
}

std::vector<SessionId> Roster::MembersOf(const Group& group) const {
  std::vector<SessionId> members;
  members.reserve(group.members);
  for (const SessionId session : group.ranks)
    if (session != 0) members.push_back(session);
  std::ranges::sort(members);
  return members;
}

const Group* Roster::ControlledBy(SessionId session) const {
  const auto at = std::ranges::lower_bound(controls_, session, {}, &ControlOf::session);
  return at != controls_.end() && at->session == session ? FindGroup(at->group) : nullptr;
}

uint32_t Roster::Offering(int64_t number) const {
  const auto at = std::ranges::lower_bound(offers_, number, {}, &Offer::number);
  return at != offers_.end() && at->number == number ? at->trainers : 0;
}

Worker& Roster::At(SessionId session) { return const_cast<Worker&>(*Find(session)); }
Group& Roster::GroupAt(GroupId id) { return const_cast<Group&>(*FindGroup(id)); }

// --- Counts ---------------------------------------------------------------------------------------------

void Roster::Count(const Worker& worker, int sign) {
  Group& group = GroupAt(worker.group);
  const bool trainer = worker.group == kTrainers;
  const bool sleeps = worker.state == protocol::EngineState::kSuspended;
  GroupCounts& counts = group.counts;
  Adjust(counts.ready, worker.registered && (trainer || worker.landed), sign);
  Adjust(counts.suspended, sleeps, sign);
  Adjust(counts.fencing, worker.fencing.has_value(), sign);
  Adjust(counts.in_place, worker.landing == protocol::Landing::kInPlace, sign);
  Adjust(counts.states[static_cast<size_t>(worker.state)], true, sign);
  if (sleeps) {
    Adjust(suspended_, true, sign);
    Touch(kTrainers);  // They wait for those who sleep.
  }
  Adjust(unprepared_, worker.planned != 0 && worker.planned == epoch_ && worker.prepared != epoch_, sign);
  if (trainer) CountOffer(worker, sign);
}

void Roster::CountOffer(const Worker& trainer, int sign) {
  Adjust(waiting_, trainer.waiting, sign);
  auto at = std::ranges::lower_bound(offers_, trainer.offered, {}, &Offer::number);
  if (at == offers_.end() || at->number != trainer.offered)
    at = offers_.insert(at, {.number = trainer.offered});
  Adjust(at->trainers, true, sign);
  Adjust(at->waiting, trainer.waiting, sign);
  if (at->trainers == 0) offers_.erase(at);
}

void Roster::FindServed(Group& group) {
  group.served = {};
  const auto serving = group.counts.states[static_cast<size_t>(protocol::EngineState::kServing)];
  if (!IsComplete(group) || serving != group.members) return;
  const Version& first = MemberOf(group, 0)->version;
  for (const SessionId session : group.ranks)
    if (Find(session)->version != first) return;
  group.served = first;
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
  roster_.Touch(worker_.group);
  const bool same = served_ == Serves(worker_) && run_ == protocol::RunOf(worker_.version) &&
                    number_ == worker_.version.number;
  if (!same) roster_.FindServed(roster_.GroupAt(worker_.group));
}

Roster::Edit Roster::Change(const Worker& worker) { return {*this, const_cast<Worker&>(worker)}; }

Group& Roster::Change(const Group& group) {
  Touch(group.id);
  return const_cast<Group&>(group);
}

const Group& Roster::AddGroup(std::string engine) {
  const auto name = [this](GroupId id) { return std::string_view(FindGroup(id)->name); };
  const auto at = std::ranges::lower_bound(by_name_, std::string_view(engine), {}, name);
  by_name_.insert(at, next_group_);
  Group& group = groups_.emplace_back();
  group.id = next_group_++;
  group.name = std::move(engine);
  Touch(group.id);
  return group;
}

void Roster::RemoveGroup(GroupId id) {
  std::erase(by_name_, id);
  groups_.erase(groups_.begin() + (FindGroup(id) - groups_.data()));
}

void Roster::SetWorldSize(const Group& listed, uint32_t world_size) {
  Group& group = GroupAt(listed.id);
  group.world_size = world_size;
  group.ranks.resize(world_size);
  Touch(group.id);
}

void Roster::SetControl(const Group& listed, const Control& control) {
  Group& group = GroupAt(listed.id);
  if (group.control.session != 0) {
    const auto old = std::ranges::lower_bound(controls_, group.control.session, {}, &ControlOf::session);
    controls_.erase(old);
  }
  group.control = control;
  Touch(group.id);
  if (control.session == 0) return;
  const auto at = std::ranges::lower_bound(controls_, control.session, {}, &ControlOf::session);
  controls_.insert(at, {.session = control.session, .group = group.id});
}

const Worker& Roster::Add(Worker worker) {
  Group& group = GroupAt(worker.group);
  if (group.members++ == 0 && group.id != kTrainers) ++inhabited_;
  group.ranks[worker.rank] = worker.session;
  const auto at = std::ranges::lower_bound(workers_, worker.session, {}, &Worker::session);
  const Worker& added = *workers_.insert(at, std::move(worker));
  Count(added, 1);
  Touch(group.id);
  FindServed(group);
  return added;
}

void Roster::Remove(SessionId session) {
  Worker& worker = At(session);
  Group& group = GroupAt(worker.group);
  Count(worker, -1);
  if (--group.members == 0 && group.id != kTrainers) --inhabited_;
  group.ranks[worker.rank] = 0;
  workers_.erase(workers_.begin() + (&worker - workers_.data()));
  Touch(group.id);
  FindServed(group);
}

void Roster::BeginEpoch(uint32_t epoch) {
  epoch_ = epoch;
  unprepared_ = 0;
  TouchAll();
}

// --- Touched --------------------------------------------------------------------------------------------

void Roster::Touch(GroupId id) {
  if (id != kTrainers) quiet_ = false;
  if (!all_touched_ && (touched_.empty() || touched_.back() != id)) touched_.push_back(id);
}

void Roster::TouchAll() {
  quiet_ = false;
  all_touched_ = true;
  touched_.clear();
}

std::vector<GroupId> Roster::Touched() const {
  std::vector<GroupId> ids;
  if (all_touched_) {
    ids.reserve(groups_.size());
    for (const Group& group : groups_) ids.push_back(group.id);
    return ids;
  }
  ids = touched_;
  std::ranges::sort(ids);
  const auto rest = std::ranges::unique(ids);
  ids.erase(rest.begin(), rest.end());
  std::erase_if(ids, [this](GroupId id) { return FindGroup(id) == nullptr; });
  return ids;
}

void Roster::Untouch() {
  all_touched_ = false;
  touched_.clear();
}

}  // namespace weightcast::control
