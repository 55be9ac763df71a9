#include "control/update_rule.h"

#include <algorithm>
#include <string>
#include <utility>

#include "control/group_change.h"
#include "control/roster_facts.h"
#include "control/update_report.h"
#include "control/update_state.h"

namespace weightcast::control {
namespace {

/// Only Cancel is the publisher's own wish: to him the end of another is a failure.
Status Unwished(const Status& reason) {
  return reason.code() == Code::kCancelled ? Status(Code::kUnavailable, reason.message()) : reason;
}

}  // namespace

// --- What the others ask --------------------------------------------------------------------------------

bool UpdateRule::open() const { return state_.open.has_value(); }

UpdateFacts UpdateRule::update() const {
  const UpdateState& update = *state_.open;
  return {.id = update.id,
          .version = update.version,
          .fresh = update.fresh,
          .released = update.released,
          .aborted = update.aborted,
          .trainers = update.trainers,
          .senders = update.senders.size(),
          .first_sender = update.first_sender};
}

bool UpdateRule::SwitchesTogether() const { return config_.together && state_.open->fresh; }

void UpdateRule::MarkStarted() { state_.open->started = true; }

void UpdateRule::SendTo(std::span<const SessionId> sessions, const protocol::ControllerMessage& message) {
  std::vector<SessionId> here = Present(roster_, sessions);
  if (!here.empty()) out_.Add(SendAll{std::move(here), message});
}

// --- It opens -------------------------------------------------------------------------------------------

void UpdateRule::SetOpen(NewUpdate update) {
  UpdateState& open = state_.open.emplace();
  open.id = {.term = config_.term,
             .epoch = rules_.planning->plan().epoch,
             .sequence = state_.sequence,
             .attempt = state_.attempt};
  open.version = std::move(update.version);
  open.fresh = update.fresh;
  open.trainers = std::move(update.trainers);
  open.absent = std::move(update.absent);
}

void UpdateRule::Open(NewUpdate update) {
  if (update.fresh || state_.sequence == 0) {  // No update has the number 0, not even one that is held.
    ++state_.sequence;
    state_.attempt = 0;
  } else {
    ++state_.attempt;
  }
  const PlanFacts plan = rules_.planning->plan();
  update.trainers.assign(plan.sources.begin(), plan.sources.end());
  std::vector<Ranks::Seat> seats;
  for (uint32_t number = 0; number < plan.destinations.size(); ++number) {
    const SessionId session = plan.destinations[number];
    if (std::ranges::binary_search(update.engines, roster_.Find(session)->group))
      seats.push_back({.session = session, .destination = number});
  }
  const std::vector<GroupId> engines = std::move(update.engines);
  SetOpen(std::move(update));
  rules_.publications->Opened();
  out_.Log(LogLevel::kInfo, protocol::ToString(state_.open->id), ": version ", ToString(state_.open->version),
           " to ", engines.size(), " engines");
  AddSenders();
  rules_.ranks->Open(seats);
  rules_.engines->Open(engines, EngineStep::kGranting);
  rules_.repair->Open(Holders::kTrainersLeft);
  roster_.touched().AddAll();
  for (const GroupId engine : engines) rules_.engines->BeginGrants(engine);
}

void UpdateRule::OpenFromEngines(NewUpdate update) {
  state_.sequence = std::max<uint64_t>(state_.sequence, 1);  // 0 stands for what is said of preparation.
  ++state_.attempt;
  std::vector<Ranks::Seat> seats;
  for (const GroupId engine : update.engines)
    for (const SessionId session : MembersOf(*roster_.FindGroup(engine)))
      seats.push_back({.session = session});
  const std::vector<GroupId> engines = std::move(update.engines);
  SetOpen(std::move(update));
  rules_.ranks->Open(seats);
  rules_.engines->Open(engines, EngineStep::kSourceless);
  rules_.repair->Open(Holders::kEngines);
  roster_.touched().AddAll();
  for (const GroupId engine : engines)
    if (!rules_.deadlines->IsGranting(engine)) rules_.deadlines->Begin(engine);
  rules_.repair->Advance();
}

void UpdateRule::BeginAttempt() {
  state_.open->id = {.term = config_.term,
                     .epoch = rules_.planning->plan().epoch,
                     .sequence = state_.sequence,
                     .attempt = ++state_.attempt};
  AddSenders();
}

void UpdateRule::AddSenders() {
  UpdateState& update = *state_.open;
  update.first_sender = update.senders.size();
  for (const SessionId session : rules_.planning->plan().sources) {
    const Worker* source = roster_.Find(session);
    update.senders.push_back(source == nullptr ? protocol::WorkerName{} : NameOf(roster_, *source));
  }
}

// --- Something fails ------------------------------------------------------------------------------------

void UpdateRule::Abort(const Status& reason, EngineStep last) {
  UpdateState& update = *state_.open;
  const EngineCounts& engines = rules_.engines->counts();
  const bool some_go_on =
      engines.All() > engines.Before(last) + engines.At(last) + engines.At(EngineStep::kOut);
  if (!some_go_on && !update.released) {
    update.aborted = true;
    SendTo(update.trainers,
           protocol::Abort{.update = update.id, .reason = reason, .version = update.version});
  }
  rules_.engines->OutUpTo(last, reason);
}

void UpdateRule::Lose(const Worker& worker, const Status& loss) {
  if (!state_.open) return;
  const Status reason = Unwished(loss);
  if (rules_.ranks->Of(worker.session)) rules_.engines->LoseRank(worker.group, reason, &worker);
  std::erase(state_.open->trainers, worker.session);
  const auto sources = rules_.planning->plan().sources;
  const bool gives = std::ranges::find(sources, worker.session) != sources.end();
  if (gives && !state_.open->released) rules_.repair->LoseSource(worker, reason);
}

void UpdateRule::OnFailed(const Worker& worker, const protocol::Failed& message) {
  if (!state_.open) return;
  const Status reason =
      Unwished(Error(message.reason.code(), TextOf(roster_, worker), ": ", message.reason.message()));
  const bool gives = worker.group == kTrainers || message.destination >= 0;
  gives ? SourceFailed(worker, message, reason) : rules_.ranks->OnFailed(worker, message, reason);
}

/// A source says that it cannot send: to one destination, or at all.
void UpdateRule::SourceFailed(const Worker& worker, const protocol::Failed& message, const Status& reason) {
  const UpdateState& update = *state_.open;
  // Cancelled: it does not have the version any more, and says nothing against what it has sent.
  const bool gives_up = message.reason.code() == Code::kCancelled;
  if (message.destination < 0 && !gives_up) return SourceBroken(worker, message.update, reason);
  if (update.released || update.id != message.update) return;
  if (message.destination < 0) return rules_.repair->LoseSource(worker, reason);
  // Bytes that have all arrived need no path any more.
  const std::optional<GroupId> lacks = rules_.ranks->LackingAt(message.update, message.destination);
  if (!lacks) return;
  const EngineStep step = rules_.engines->Of(*lacks)->step;
  if (step < EngineStep::kReady && step != EngineStep::kSourceless)
    rules_.repair->LoseSource(worker, reason, *lacks);
}

/// What it has sent may be wrong, in an earlier attempt too: no engine switches that has not been told to.
void UpdateRule::SourceBroken(const Worker& worker, const protocol::UpdateId& failed, const Status& reason) {
  const UpdateState& update = *state_.open;
  const bool earlier = update.fresh && failed.term == update.id.term &&
                       failed.sequence == update.id.sequence && Contains(update.trainers, worker.session);
  if (update.id == failed || earlier) Abort(reason, EngineStep::kHalting);
}

// --- It yields ------------------------------------------------------------------------------------------

bool UpdateRule::IsSomethingNewer() const {
  const Version offered = protocol::VersionOf(rules_.runs->run(), CommonOffer(roster_));
  return roster_.offers().waiting() != 0 && offered.number >= 0 &&
         protocol::RunAndNumber(state_.open->version) < protocol::RunAndNumber(offered);
}

void UpdateRule::SupersedeUnstarted() {
  if (!state_.open || state_.open->started || !IsSomethingNewer()) return;
  const UpdateState& update = *state_.open;
  out_.LogAndCount("control.updates_superseded", LogLevel::kInfo, protocol::ToString(update.id), ": version ",
                   ToString(update.version), " is superseded before anything was sent");
  SendTo(update.trainers, protocol::Superseded{.version = update.version});
  Withdraw();
}

void UpdateRule::LeaveLate() {
  if (!state_.open || (state_.open->fresh && !IsSomethingNewer())) return;
  const Engines::Lateness engines = rules_.engines->lateness();
  if (engines.waiting) return;
  const bool newcomers = !state_.open->fresh && engines.overdue && rules_.repair->HasNewcomers();
  const bool granted = engines.through || engines.begun;
  if (!newcomers && !(granted && IsSomethingNewer())) return;
  if (!granted) return Withdraw();
  rules_.engines->DropLate();
  Advance();
}

/// As long as no source knows of the update, it costs nobody anything to begin it again under the next plan.
void UpdateRule::BeginAgain(const Worker& worker, std::string_view what) {
  const std::optional<RankProgress> rank = rules_.ranks->Of(worker.session);
  if (!rank || rank->step != RankStep::kAsked) return;
  const EngineStep step = rules_.engines->Of(worker.group)->step;
  if (step == EngineStep::kOut) return;
  // It is planned for the repair with the tensors that it has by then. One that sleeps never answers.
  if (step == EngineStep::kSourceless && worker.registered) return;
  const UpdateState& update = *state_.open;
  const std::string text = StrCat(TextOf(roster_, worker), " ", what);
  const bool gone =
      update.fresh && protocol::VersionOf(rules_.runs->run(), CommonOffer(roster_)) != update.version;
  if (update.started || gone) {
    rules_.engines->Out(worker.group,
                        {Code::kUnavailable, text + "; resume it if suspended, then publish again"}, &worker);
    return;
  }
  out_.Log(LogLevel::kInfo, protocol::ToString(update.id), " begins again: ", text);
  if (update.fresh) rules_.publications->Reopens();
  Withdraw();
}

void UpdateRule::Withdraw() {
  rules_.engines->Withdraw();
  rules_.planning->EndPartial();
  roster_.touched().AddAll();
  rules_.engines->Close();
  rules_.ranks->Close();
  rules_.repair->Close();
  rules_.deadlines->Close();
  state_.open.reset();
}

// --- It goes on, and ends -------------------------------------------------------------------------------

void UpdateRule::Advance() {
  if (!state_.open) return;
  rules_.repair->Advance();
  rules_.engines->Advance();
  ReleaseSources();
  const EngineCounts& engines = rules_.engines->counts();
  if (engines.At(EngineStep::kDone) + engines.At(EngineStep::kOut) == engines.All()) Finish();
}

void UpdateRule::ReleaseSources() {
  UpdateState& update = *state_.open;
  if (update.released || update.aborted) return;
  const EngineCounts& engines = rules_.engines->counts();
  const bool any = engines.At(EngineStep::kOut) != engines.All();
  if (!any || engines.Before(EngineStep::kReady) != 0) return;
  update.released = true;
  const protocol::Release release{.update = update.id, .version = update.version};
  SendTo(update.trainers, release);
  const PlanFacts plan = rules_.planning->plan();
  if (plan.from_engines) SendTo(plan.sources, release);
}

/// Whether some engine serves the version.
bool UpdateRule::NoteEnds(const std::vector<EngineEnd>& ends, const Version& version) {
  bool any_committed = false;
  for (const EngineEnd& end : ends) {
    if (end.committed) GroupChange(roster_, end.group).SetLastError(Status::Ok());
    any_committed = any_committed || end.committed;
    rules_.opening->NoteEnd(end, version);
    if (!end.committed && !end.late)
      rules_.planning->MarkStale();  // The next epoch makes the broken connections again.
  }
  return any_committed;
}

void UpdateRule::Finish() {
  roster_.touched().AddAll();
  const UpdateState update = *std::exchange(state_.open, std::nullopt);
  const std::vector<EngineEnd> ends = rules_.engines->Close();
  const std::vector<Arrival> arrivals = rules_.ranks->Close();
  rules_.repair->Close();
  rules_.deadlines->Close();
  const PlanFacts plan = rules_.planning->plan();
  if (plan.from_engines && !update.released)
    SendTo(plan.sources, protocol::Release{.update = update.id, .version = update.version});
  rules_.planning->EndPartial();
  const bool any_committed = NoteEnds(ends, update.version);
  const protocol::Done done = MakeDone(config_, roster_,
                                       {.id = update.id,
                                        .version = update.version,
                                        .absent = update.absent,
                                        .senders = update.senders,
                                        .engines = ends,
                                        .arrivals = arrivals});
  if (any_committed) state_.committed = protocol::LaterOf(state_.committed, update.version);
  if (!done.met_policy) rules_.last_error = done.reason;
  SendTo(update.trainers, done);
  out_.LogAndCount(done.met_policy ? "control.updates_committed" : "control.updates_failed",
                   done.met_policy ? LogLevel::kInfo : LogLevel::kWarning, protocol::ToString(update.id),
                   ": version ", ToString(update.version),
                   done.met_policy ? " is served" : " failed: ", done.reason.message());
}

}  // namespace weightcast::control
