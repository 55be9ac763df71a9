#include "worker/update_record.h"

#include <utility>

#include "base/strings.h"

namespace weightcast::worker {
namespace {

std::vector<RankStats> StatsOf(const std::vector<protocol::RankBytes>& ranks) {
  std::vector<RankStats> stats;
  for (const auto& rank : ranks)
    stats.push_back({.name = protocol::ToString(rank.name),
                     .bytes = rank.bytes,
                     .seconds = rank.seconds,
                     .compared = rank.compared});
  return stats;
}

std::vector<EngineStats> EnginesOf(const protocol::Done& done) {
  std::vector<EngineStats> engines;
  for (const auto& engine : done.engines)
    engines.push_back({.engine = engine.engine,
                       .committed = engine.committed,
                       .reason = engine.reason.message(),
                       .rank = engine.rank});
  return engines;
}

/// The controller's word as the user gets it. Done's reason where the policy is not met.
Result<UpdateStats> StatsOf(const protocol::Done& done) {
  if (!done.met_policy) {
    const Status unknown =
        Error(Code::kInternal, "the controller ended ", protocol::ToString(done.update), " of version ",
              ToString(done.version), " without a reason; please report this as a bug");
    return done.reason.ok() ? unknown : done.reason;
  }
  UpdateStats stats;
  stats.version = done.version;
  stats.seconds = done.seconds;
  stats.senders = StatsOf(done.senders);
  stats.receivers = StatsOf(done.receivers);
  for (const auto& route : done.routes)
    stats.routes.push_back({.sender = protocol::ToString(route.sender),
                            .receiver = protocol::ToString(route.receiver),
                            .bytes = route.bytes,
                            .seconds = route.seconds});
  stats.bytes = done.bytes;
  stats.engines = EnginesOf(done);
  return stats;
}

}  // namespace

void UpdateRecord::SetFree(Status status) {
  told_.Change([&](Told& told) {
    if (!told.free) told.free = AsOutcome(std::move(status));
  });
}

void UpdateRecord::SetHeld() {
  told_.Change([](Told& told) { told.free.reset(); });
}

void UpdateRecord::SetDone(Result<UpdateStats> outcome, std::vector<EngineStats> engines) {
  told_.Change([&](Told& told) {
    if (told.done) return;
    told.engines = std::move(engines);
    told.done = outcome.ok() ? std::move(outcome) : Result<UpdateStats>(AsOutcome(outcome.status()));
  });
}

bool UpdateRecord::over() const {
  return told_.Read([](const Told& told) { return told.free && told.done; });
}

void UpdateRecord::SetNote(const std::string& note) {
  told_.Change([&](Told& told) { told.note = note; });
}

std::vector<EngineStats> UpdateRecord::Engines() const {
  return told_.Read([](const Told& told) { return told.engines; });
}

/// Without a controller the update is over, but its sources are free only when nobody reads them any more.
template <typename Done>
Woken UpdateRecord::WaitUntil(TimePoint deadline, const Done& done) {
  Limits limits{.deadline = deadline, .interrupted = interrupted_, .patience = patience_};
  while (true) {
    const Woken woken = told_.Wait(limits, done);
    if (woken != Woken::kAway) return woken;
    limits.start = Clock::now();
    if (const Status away = patience_.absence->Told(); !away.ok()) calls_.give_up(away);
  }
}

Status UpdateRecord::WaitSources(TimePoint deadline) {
  WC_RETURN_IF_ERROR(process_.Check());
  std::optional<Status> free;
  const Woken woken = WaitUntil(deadline, [&](const Told& told) { return (free = told.free).has_value(); });
  return free ? *free
              : NotYet(woken, "engines still need the registered tensors",
                       "do not change them, and wait for the sources again");
}

Result<UpdateStats> UpdateRecord::Wait(TimePoint deadline) {
  WC_RETURN_IF_ERROR(process_.Check());
  std::optional<Result<UpdateStats>> done;
  const Woken woken = WaitUntil(deadline, [&](const Told& told) { return (done = told.done).has_value(); });
  if (done) return *done;
  return NotYet(woken, "it is not committed yet", "wait again, or cancel the update");
}

Status UpdateRecord::NotYet(Woken woken, const char* what, const char* advice) const {
  const std::string text = StrCat("version ", ToString(version_), ": ", what);
  if (woken == Woken::kInterrupted)
    return Error(Code::kCancelled, "a signal or the caller ended this wait; ", text, "; ", advice);
  const std::string note = told_.Read([](const Told& told) { return told.note; });
  return Error(Code::kTimedOut, text, ", and the timeout of this call is over; ", advice,
               note.empty() ? "" : "; ", note);
}

// --- All of a trainer ---------------------------------------------------------------------------------

bool UpdateRecords::Add(int64_t number, std::shared_ptr<UpdateRecord> record,
                        std::shared_ptr<const StreamGate> gate) {
  return entries_.try_emplace(number, Entry{std::move(record), std::move(gate)}).second;
}

std::shared_ptr<const StreamGate> UpdateRecords::GateOf(int64_t number) const {
  const auto at = entries_.find(number);
  return at == entries_.end() ? nullptr : at->second.gate;
}

void UpdateRecords::SetHeld(int64_t number) {
  if (const auto at = entries_.find(number); at != entries_.end()) at->second.record->SetHeld();
}

void UpdateRecords::SetFree(int64_t number, const Status& status) {
  if (const auto at = entries_.find(number); at != entries_.end()) at->second.record->SetFree(status);
  Prune();
}

void UpdateRecords::SetDone(int64_t number, const Status& status, const std::optional<protocol::Done>& done) {
  if (const auto at = entries_.find(number); at != entries_.end())
    done ? at->second.record->SetDone(StatsOf(*done), EnginesOf(*done)) : at->second.record->SetDone(status);
  Prune();
}

void UpdateRecords::SetNote(const std::string& note) {
  for (auto& [number, entry] : entries_) entry.record->SetNote(note);
}

void UpdateRecords::SetAllFree(const Status& status) {
  for (auto& [number, entry] : entries_) entry.record->SetFree(status);
}

/// Of what is over only the newest may come up again: it may be held.
void UpdateRecords::Prune() {
  std::erase_if(entries_, [&](const auto& entry) {
    return entry.first != entries_.rbegin()->first && entry.second.record->over();
  });
}

}  // namespace weightcast::worker
