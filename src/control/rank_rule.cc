#include "control/rank_rule.h"

#include <algorithm>
#include <utility>

#include "control/group_change.h"
#include "control/rank_state.h"
#include "control/roster_facts.h"
#include "control/worker_change.h"

namespace weightcast::control {
namespace {

using protocol::EngineState;

/// To each source one message for all its destinations; more, if they are at different parts or attempts.
class Starts {
 public:
  Starts(const Version& version, std::span<const SessionId> sources, Outbox& out)
      : version_(version), sources_(sources), out_(out), starts_(sources.size()) {}

  void Add(Receiver& rank, uint32_t part) {
    if (id_ != rank.id || part_ != part) Send();
    id_ = rank.id;
    part_ = part;
    for (const protocol::SourceGrant& grant : std::exchange(rank.grants, {})) {
      protocol::Start& start = starts_[grant.source];
      if (start.grants.empty()) {
        start.update = id_;
        start.version = version_;
        start.part = part_;
        told_.push_back(grant.source);
      }
      start.grants.push_back({.destination = rank.destination,
                              .slot = grant.slot,
                              .grant = grant.id,
                              .compares = rank.compares});
    }
  }
  void Send() {
    for (const uint32_t source : std::exchange(told_, {}))
      out_.Send(sources_[source], std::exchange(starts_[source], {}));
  }

 private:
  const Version& version_;
  std::span<const SessionId> sources_;
  Outbox& out_;
  std::vector<protocol::Start> starts_;
  std::vector<uint32_t> told_;  ///< Sources with a grant, as they come.
  protocol::UpdateId id_;
  uint32_t part_ = 0;
};

}  // namespace

// --- What the others ask --------------------------------------------------------------------------------

void RankRule::Open(const std::vector<Seat>& seats) {
  for (const Seat& seat : seats) {
    const Worker& worker = *roster_.Find(seat.session);
    state_.receivers.push_back({.session = worker.session,
                                .group = worker.group,
                                .rank = worker.rank,
                                .destination = seat.destination});
  }
  state_.Index();
}

std::vector<Arrival> RankRule::Close() {
  std::vector<Arrival> arrivals;
  for (Receiver& rank : std::exchange(state_, {}).receivers) {
    if (rank.step < RankStep::kReady) continue;
    arrivals.push_back({.group = rank.group,
                        .rank = rank.rank,
                        .bytes = rank.bytes,
                        .seconds = rank.seconds,
                        .compared = rank.compared,
                        .routes = std::move(rank.routes)});
  }
  return arrivals;
}

std::optional<RankProgress> RankRule::Of(SessionId session) const {
  const Receiver* rank = state_.Of(session);
  if (rank == nullptr) return std::nullopt;
  return RankProgress{.id = rank->id, .step = rank->step};
}

std::optional<GroupId> RankRule::LackingAt(const protocol::UpdateId& id, int64_t destination) const {
  for (const Receiver& rank : state_.receivers)
    if (rank.id == id && rank.destination == destination && rank.step < RankStep::kReady) return rank.group;
  return std::nullopt;
}

bool RankRule::AllAt(GroupId engine, RankStep step) const { return state_.AllAt(engine, step); }

bool RankRule::AnyReady(GroupId engine) const {
  return std::ranges::any_of(state_.RanksOf(engine),
                             [](const Receiver& rank) { return rank.step >= RankStep::kReady; });
}

const Worker* RankRule::MissingAt(GroupId engine, RankStep step) const {
  for (const Receiver& rank : state_.RanksOf(engine)) {
    const Worker* worker = roster_.Find(rank.session);
    if (rank.step < step && worker != nullptr) return worker;
  }
  return nullptr;
}

bool RankRule::IsSettled(GroupId engine) const {
  return std::ranges::all_of(state_.RanksOf(engine), [this](const Receiver& rank) {
    const Worker* worker = roster_.Find(rank.session);
    return worker == nullptr || (!worker->fencing && worker->landed);
  });
}

void RankRule::Renumber(std::span<const SessionId> destinations) {
  for (uint32_t number = 0; number < destinations.size(); ++number) {
    Receiver& rank = *state_.Of(destinations[number]);
    const bool lacks = rules_.engines->Of(rank.group)->step == EngineStep::kSourceless;
    if (lacks && rank.step < RankStep::kReady) rank.destination = number;
  }
}

// --- What they are told ---------------------------------------------------------------------------------

void RankRule::Ask(GroupId engine) {
  const UpdateFacts update = rules_.updates->update();
  std::vector<SessionId> asked;
  for (Receiver& rank : state_.RanksOf(engine)) {
    if (rank.step >= RankStep::kReady) continue;
    rank.id = update.id;
    rank.started = false;
    asked.push_back(rank.session);
  }
  if (asked.empty()) return;
  out_.Add(SendAll{std::move(asked),
                   protocol::GrantRequest{.update = update.id, .version = update.version, .part = 0}});
}

void RankRule::AskForPart(GroupId engine, uint32_t part) {
  const UpdateFacts update = rules_.updates->update();
  for (Receiver& rank : state_.RanksOf(engine)) {
    state_.Move(rank, RankStep::kAsked);
    out_.Send(rank.session,
              protocol::GrantRequest{.update = rank.id, .version = update.version, .part = part});
  }
}

void RankRule::Start(const std::vector<GroupId>& engines) {
  Starts starts(rules_.updates->update().version, rules_.planning->plan().sources, out_);
  for (const GroupId engine : engines) {
    const uint32_t part = rules_.engines->Of(engine)->part;
    for (Receiver& rank : state_.RanksOf(engine)) {
      rank.started = true;
      starts.Add(rank, part);
    }
  }
  starts.Send();
}

void RankRule::Commit(GroupId engine) {
  for (Receiver& rank : state_.RanksOf(engine)) {
    state_.Move(rank, RankStep::kCommitting);
    out_.Send(rank.session, protocol::Commit{.update = rank.id});
  }
}

void RankRule::Serve(GroupId engine) {
  const Version& version = rules_.updates->update().version;
  for (const Receiver& rank : state_.RanksOf(engine)) {
    const Worker* told = roster_.Find(rank.session);
    if (told == nullptr) continue;
    WorkerChange(roster_, *told).SetTold(rank.id, version);
    out_.Send(rank.session, protocol::Serve{.update = rank.id});
  }
}

void RankRule::Abort(GroupId engine, const Status& reason, SessionId fenced_already) {
  const UpdateFacts update = rules_.updates->update();
  for (const Receiver& rank : state_.RanksOf(engine)) {
    const Worker* worker = roster_.Find(rank.session);
    const bool asked = rank.id.sequence != 0;
    if (!asked || worker == nullptr || rank.session == fenced_already) continue;
    WorkerChange(roster_, *worker).BeginFence(rank.id);
    out_.Send(rank.session,
              protocol::Abort{
                  .update = rank.id, .reason = reason, .version = update.version, .started = rank.started});
  }
}

void RankRule::StopSenders(GroupId engine) {
  const UpdateFacts update = rules_.updates->update();
  if (update.released || update.aborted) return;
  for (const Receiver& rank : state_.RanksOf(engine)) {
    if (rank.step != RankStep::kGranted) continue;
    std::vector<SessionId> here = Present(roster_, rules_.planning->plan().sources);
    if (here.empty()) continue;
    out_.Add(SendAll{std::move(here), protocol::Stop{.update = rank.id, .destination = rank.destination}});
  }
}

void RankRule::LoseSources(GroupId engine) {
  for (Receiver& rank : state_.RanksOf(engine)) {
    const Worker* worker = roster_.Find(rank.session);
    if (rank.step >= RankStep::kReady || worker == nullptr) continue;
    state_.Move(rank, RankStep::kAsked);
    rank.grants.clear();
    WorkerChange(roster_, *worker).BeginFence(rank.id);
    out_.Send(rank.session, protocol::Abort{.update = rank.id,
                                            .reason = Status::Ok(),
                                            .version = rules_.updates->update().version,
                                            .started = rank.started});
  }
}

// --- What they answer -----------------------------------------------------------------------------------

Receiver* RankRule::InTurn(const Worker& worker, const protocol::UpdateId& update, RankStep step,
                           std::string_view what, std::optional<uint32_t> part) {
  Receiver* rank = state_.Of(worker.session);
  if (rank == nullptr || rank->id != update) return nullptr;
  const EngineProgress& engine = *rules_.engines->Of(worker.group);
  if (!rules_.engines->IsBusy(worker.group) || engine.step == EngineStep::kSourceless) return nullptr;
  const uint32_t of = part.value_or(engine.part);
  if (rank->step == step && of == engine.part) return rank;
  if (of < engine.part || (rank->step > step && of == engine.part)) return nullptr;  // A repetition.
  rules_.engines->Out(
      worker.group,
      Error(Code::kProtocol, TextOf(roster_, worker), " sent ", what, " for ", protocol::ToString(update),
            ", group of tensors ", of, ", out of order; use the same weightcast on all hosts"),
      &worker);
  return nullptr;
}

void RankRule::OnGranted(const Worker& worker, const protocol::Granted& message) {
  Receiver* rank = InTurn(worker, message.update, RankStep::kAsked, "Granted", message.part);
  if (rank == nullptr) return;
  std::vector<bool> named(rules_.planning->plan().sources.size());
  for (const protocol::SourceGrant& grant : message.grants) {
    if (grant.source < named.size() && !named[grant.source]) {
      named[grant.source] = true;
      continue;
    }
    return rules_.engines->Out(
        worker.group,
        Error(Code::kProtocol, TextOf(roster_, worker), " granted source ", grant.source,
              grant.source < named.size() ? " twice" : ", which the plan does not have",
              "; use the same weightcast on all hosts"),
        &worker);
  }
  state_.Move(*rank, RankStep::kGranted);
  rank->grants = message.grants;
  rank->compares = message.compares;
  WorkerChange(roster_, worker).SetGranted();
  if (AllAt(worker.group, RankStep::kGranted)) rules_.engines->RanksCame(worker.group, RankStep::kGranted);
}

void RankRule::OnReady(const Worker& worker, const protocol::Ready& message) {
  Receiver* rank = InTurn(worker, message.update, RankStep::kGranted, "Ready", message.part);
  if (rank == nullptr) return;
  const UpdateFacts update = rules_.updates->update();
  state_.Move(*rank, RankStep::kReady);
  if (worker.parts == 1) WorkerChange(roster_, worker).SetHolds(update.version);
  rank->bytes = message.bytes;
  rank->seconds = message.seconds;
  rank->compared = message.compared;
  rank->routes.clear();
  for (const protocol::SourceBytes& source : message.sources) {
    const size_t sender = update.first_sender + source.source;
    if (sender >= update.senders) continue;  // Only a statistic.
    rank->routes.push_back(
        {.sender = static_cast<uint32_t>(sender), .bytes = source.bytes, .seconds = source.seconds});
  }
  if (IsLastPart(roster_, worker.group, rules_.engines->Of(worker.group)->part))
    WorkerChange(roster_, worker).SetState(EngineState::kReady);
  if (AllAt(worker.group, RankStep::kReady)) rules_.engines->RanksCame(worker.group, RankStep::kReady);
}

/// What a source says of its bytes is the rank's to compare. Nothing here depends on it.
void RankRule::OnSentDigests(const Worker& source, const protocol::SentDigests& message) {
  const PlanFacts plan = rules_.planning->plan();
  const auto number = std::ranges::find(plan.sources, source.session) - plan.sources.begin();
  if (number == std::ssize(plan.sources)) return;
  if (message.destination >= plan.destinations.size()) return;
  const Receiver* rank = state_.Of(plan.destinations[message.destination]);
  if (rank == nullptr || rank->id != message.update || rank->destination != message.destination) return;
  out_.Send(rank->session, protocol::SourceDigests{.update = rank->id,
                                                   .source = static_cast<uint32_t>(number),
                                                   .part = message.part,
                                                   .digests = message.digests});
}

void RankRule::OnCommitted(const Worker& worker, const protocol::Committed& message) {
  Receiver* rank = InTurn(worker, message.update, RankStep::kCommitting, "Committed");
  if (rank == nullptr) return;
  state_.Move(*rank, RankStep::kCommitted);
  WorkerChange(roster_, worker).SetState(EngineState::kCommitted);
  if (AllAt(worker.group, RankStep::kCommitted))
    rules_.engines->RanksCame(worker.group, RankStep::kCommitted);
}

void RankRule::OnServing(const Worker& worker, const protocol::Serving& message) {
  if (worker.told == message.update && worker.told_version == message.version) {
    // Also when the update has not waited for this answer: a Serve is never taken back.
    WorkerChange(roster_, worker).SetServing();
    Receiver* rank = InTurn(worker, message.update, RankStep::kCommitted, "Serving");
    if (rank == nullptr) return;
    state_.Move(*rank, RankStep::kServing);
    if (AllAt(worker.group, RankStep::kServing)) rules_.engines->RanksCame(worker.group, RankStep::kServing);
    return;
  }
  const Receiver* rank = state_.Of(worker.session);
  if (rank == nullptr || rank->id != message.update) return;
  rules_.membership->Refuse(
      worker.session, Error(Code::kProtocol, TextOf(roster_, worker), " has said that it serves version ",
                            ToString(message.version),
                            ", which the controller did not order; use the same weightcast on all hosts"));
}

void RankRule::OnFailed(const Worker& worker, const protocol::Failed& message, const Status& reason) {
  const Receiver* rank = state_.Of(worker.session);
  if (rank == nullptr || rank->id != message.update) return;
  const EngineStep step = rules_.engines->Of(worker.group)->step;
  if (step >= EngineStep::kServing || step == EngineStep::kSourceless) return;
  if (message.source < 0) return rules_.engines->Out(worker.group, reason, &worker);
  const auto sources = rules_.planning->plan().sources;
  const auto source = static_cast<size_t>(message.source);
  const Worker* lost = source < sources.size() ? roster_.Find(sources[source]) : nullptr;
  if (lost != nullptr && rank->step < RankStep::kReady)
    rules_.repair->LoseSource(*lost, reason, worker.group);
}

void RankRule::OnAborted(const Worker& worker, const protocol::Aborted& message) {
  if (worker.fencing == message.update) {
    WorkerChange(roster_, worker).EndFence();
  } else {
    // A rank whose user gave up the phases says so by itself: it has fenced already.
    Receiver* rank = state_.Of(worker.session);
    if (rank == nullptr || rank->id != message.update) return;
    const EngineStep step = rules_.engines->Of(worker.group)->step;
    if (step >= EngineStep::kServing) return;
    if (step == EngineStep::kSourceless) {
      state_.Move(*rank,
                  RankStep::kAsked);  // It is asked for a new grant with the others.
    } else {
      rules_.engines->Out(
          worker.group,
          Error(Code::kUnavailable, TextOf(roster_, worker), " gave up the update; see its log"), &worker,
          worker.session);
    }
  }
  WorkerChange(roster_, worker).SetAborted(message);
  if (!IsFencing(*roster_.FindGroup(worker.group))) GroupChange(roster_, worker.group).SetFenceOverdue(false);
}

}  // namespace weightcast::control
