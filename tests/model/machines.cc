#include "tests/model/machines.h"

#include "base/strings.h"
#include "tests/machine_fingerprint.h"
#include "tests/model/fingerprints.h"

namespace weightcast::model {
namespace {

constexpr uint64_t kControllerKey = 1, kRankKey = 2, kTrainerKey = 3, kPeerSourceKey = 4;

/// Texts tell people, not machines; what is compared is kept.
void DropText(Status& status) {
  if (!status.ok()) status = {status.code(), "-"};
}

void Normalise(control::MachineState& s) {
  s.last_error = {};
  DropText(s.membership.engine_loss);
  DropText(s.publications.withdrawn.reason);
  s.updates.committed = {};
  for (const control::Group& listed : s.roster.groups()) {
    control::Group& group = s.roster.Change(listed);
    group.last_error = {};
    DropText(group.loss);
  }
  s.roster.touched().Clear();
  if (!s.updates.open) return;
  for (auto& target : s.engines.targets) DropText(target.reason);
  for (auto& absent : s.updates.open->absent) DropText(absent.reason);
}
void Normalise(worker::InferenceState& s) {
  s.last_error = {};
  DropText(s.end);
  DropText(s.pending_error);
}
void Normalise(worker::TrainerState& s) {
  s.last_error = {};
  DropText(s.end);
  for (auto& publication : s.publications) DropText(publication.outcome);
}

template <typename T>
constexpr bool kHasUpdate = requires(const T& t) { t.update.sequence; };

void Normalise(protocol::Done& done) {
  DropText(done.reason);
  for (auto& engine : done.engines) DropText(engine.reason);
  done.senders.clear();
  done.receivers.clear();
  done.routes.clear();
  done.bytes = 0;
}
void Normalise(protocol::Failed& failed) { DropText(failed.reason); }
void Normalise(protocol::Refused& refused) { DropText(refused.reason); }
template <typename T>
void Normalise(T&) {}

}  // namespace

// --- Names ----------------------------------------------------------------------------------------------

uint8_t NumberOf(const control::TimerId& timer) {
  switch (timer.kind) {
    case control::TimerKind::kPlan:
      return 0;
    case control::TimerKind::kPrepare:
      return 1;
    case control::TimerKind::kCatchUp:
      return 2;
    case control::TimerKind::kFence:
      return 3;
    case control::TimerKind::kStep:
      return static_cast<uint8_t>(4 + timer.group);
    case control::TimerKind::kJoin:
      return static_cast<uint8_t>(8 + timer.group);
    case control::TimerKind::kRetry:
      return static_cast<uint8_t>(12 + timer.group);
  }
  return 0;
}
control::TimerId TimerOf(uint8_t number) {
  using control::TimerKind;
  static constexpr TimerKind kPlain[] = {TimerKind::kPlan, TimerKind::kPrepare, TimerKind::kCatchUp,
                                         TimerKind::kFence};
  if (number < 4) return {kPlain[number], 0};
  static constexpr TimerKind kOfGroups[] = {TimerKind::kStep, TimerKind::kJoin, TimerKind::kRetry};
  return {kOfGroups[number / 4 - 1], static_cast<control::GroupId>(number % 4)};
}

Content CodeOf(const Version& version) {
  return version.number < 0 ? kNothing
                            : static_cast<Content>(version.origin << 8 | version.run << 4 |
                                                   static_cast<uint64_t>(version.number));
}
Version VersionOf(Content content) {
  if (content == kNothing) return {};
  return {.run = content >> 4 & 15U,
          .number = int64_t{content} & 7,
          .origin = static_cast<uint64_t>(content >> 8)};
}
std::string NameOf(Content content) {
  if (content == kTorn) return "torn";
  if (content == kGarbage) return "-";
  if (content == kNothing) return "none";
  return StrCat("v", content % 8, (content & kAnew) != 0 ? " anew" : "",
                (content >> 4 & 15) == 1 ? "" : StrCat(" of run ", content >> 4 & 15));
}

// --- Pools ----------------------------------------------------------------------------------------------

Machines::Machines(const Config& config) : config_(config) {
  Keep(control::InitialState());
  Keep(worker::TrainerState{});
  Keep(worker::PeerSourceState{});
  messages_.Add({}, 0);
  updates_.Add({}, 0);
  gives_.Add({}, 0);
  queues_.Add({}, 0);
  popped_.push_back(0);
}

uint32_t Machines::NewRank(const protocol::WorkerName& name) {
  worker::InferenceState state;
  state.self = name;
  state.verify = config_.verify;
  return Keep(std::move(state));
}

uint32_t Machines::Keep(control::MachineState state) {
  Normalise(state);
  const uint64_t fingerprint = control::Fingerprint(state);
  return controllers_.Add(std::move(state), fingerprint);
}
uint32_t Machines::Keep(worker::InferenceState state) {
  Normalise(state);
  const uint64_t fingerprint = Fingerprint(state);
  return ranks_.Add(std::move(state), fingerprint);
}
uint32_t Machines::Keep(worker::TrainerState state) {
  Normalise(state);
  const uint64_t fingerprint = Fingerprint(state);
  return trainers_.Add(std::move(state), fingerprint);
}
uint32_t Machines::Keep(worker::PeerSourceState state) {
  const uint64_t fingerprint = Fingerprint(state);
  return peer_sources_.Add(std::move(state), fingerprint);
}

uint16_t Machines::Add(const protocol::UpdateId& id) {
  if (id.sequence == 0) return 0;
  uint64_t key = Mix(id.term.number);
  for (const uint64_t part : {id.term.id, uint64_t{id.epoch}, id.sequence, uint64_t{id.attempt}})
    key = Mix(key * 31 + part);
  return static_cast<uint16_t>(updates_.Add(id, key));
}

uint32_t Machines::AddMessage(Message message, uint64_t fingerprint) {
  return messages_.Add(std::move(message), fingerprint | 1);  // 0 is that of none.
}
uint32_t Machines::Add(protocol::WorkerMessage message) {
  Message kept;
  std::visit(
      [&](auto& m) {
        using T = std::decay_t<decltype(m)>;
        Normalise(m);
        if constexpr (kHasUpdate<T>) kept.update = Add(m.update);
        kept.registers = std::is_same_v<T, protocol::Register>;
      },
      message);
  kept.straggles = kept.update != 0;
  const uint64_t fingerprint = Fingerprint(message);
  kept.value = std::move(message);
  return AddMessage(std::move(kept), fingerprint);
}
uint32_t Machines::Add(protocol::ControllerMessage message) {
  Message kept;
  std::visit(
      [&](auto& m) {
        using T = std::decay_t<decltype(m)>;
        Normalise(m);
        if constexpr (kHasUpdate<T>) kept.update = Add(m.update);
        // A Start that came twice would make a sender's job twice; that is the session's to prevent.
        kept.straggles = kept.update != 0 && !std::is_same_v<T, protocol::Start>;
      },
      message);
  const uint64_t fingerprint = Fingerprint(message);
  kept.value = std::move(message);
  return AddMessage(std::move(kept), fingerprint);
}

uint32_t Machines::Push(uint32_t queue, uint32_t message) {
  const uint64_t key = Mix((uint64_t{queue} << 32) | message);
  if (const uint32_t known = pushed_.Find(key); known != FingerprintTable::kAbsent) return known;
  std::vector<uint32_t> items = queues_[queue];
  items.push_back(message);
  uint64_t fingerprint = 1;
  for (const uint32_t item : items) fingerprint = Mix(fingerprint * 31 + item);
  const uint32_t id = queues_.Add(std::move(items), fingerprint);
  popped_.resize(queues_.size(), ~uint32_t{0});
  pushed_.Insert(key, id);
  return id;
}
uint32_t Machines::Pop(uint32_t queue) {
  if (popped_[queue] != ~uint32_t{0}) return popped_[queue];
  const std::vector<uint32_t> items = queues_[queue];
  uint32_t rest = 0;
  for (size_t i = 1; i < items.size(); ++i) rest = Push(rest, items[i]);
  popped_[queue] = rest;
  return rest;
}

// --- Steps ----------------------------------------------------------------------------------------------

template <typename Run>
Taken Machines::Remember(uint64_t key, Run run) {
  if (const uint32_t at = known_.Find(key); at != FingerprintTable::kAbsent) return taken_[at];
  Taken taken{.next = 0, .first = static_cast<uint32_t>(effects_.size()), .count = 0};
  taken.next = run();
  taken.count = static_cast<uint32_t>(effects_.size()) - taken.first;
  known_.Insert(key, static_cast<uint32_t>(taken_.size()));
  taken_.push_back(taken);
  return taken;
}

Taken Machines::StepController(uint32_t state, const protocol::Term& term, Ctl kind, uint16_t session,
                               uint32_t arg) {
  uint64_t key = Mix((uint64_t{state} << 16) | session);
  key = Mix(key ^ term.number << 8 ^ term.id);
  key = Mix(key ^ (uint64_t{arg} << 24) ^ (static_cast<uint64_t>(kind) << 8) ^ kControllerKey);
  return Remember(key, [&] {
    control::MachineConfig config;
    config.term = term;
    config.together = config_.together;
    config.min_engines = config_.late ? 1 : config_.engines;
    control::MachineState next = controllers_[state];
    control::Actions actions;
    control::Step(config, next, EventOf(kind, session, arg), actions);
    AddEffects(actions);
    return Keep(std::move(next));
  });
}

template <typename State, typename Event>
Taken Machines::StepWorker(const State& state, uint64_t id, uint64_t salt, In kind, uint32_t arg,
                           Event (Machines::*event)(In, uint32_t) const) {
  const uint64_t key = Mix(Mix((id << 32) | arg) ^ (static_cast<uint64_t>(kind) << 8) ^ salt);
  return Remember(key, [&] {
    State next = state;
    AddEffects(worker::Advance(next, (this->*event)(kind, arg)));
    return Keep(std::move(next));
  });
}

Taken Machines::StepRank(uint32_t state, In kind, uint32_t arg) {
  return StepWorker(ranks_[state], state, kRankKey, kind, arg, &Machines::RankEvent);
}

Taken Machines::StepTrainer(uint32_t state, In kind, uint32_t arg) {
  return StepWorker(trainers_[state], state, kTrainerKey, kind, arg, &Machines::TrainerEvent);
}

Taken Machines::StepPeerSource(uint32_t state, In kind, uint32_t arg) {
  return StepWorker(peer_sources_[state], state, kPeerSourceKey, kind, arg, &Machines::PeerSourceEvent);
}

std::string Machines::Sizes() const {
  return StrCat(controllers_.size(), " states of the controller's machine, ", ranks_.size(), " of ranks', ",
                trainers_.size(), " of trainers', ", peer_sources_.size(), " of peer sources', ",
                taken_.size(), " steps, ", messages_.size(), " messages, ", queues_.size(), " queues");
}

}  // namespace weightcast::model
