#include <algorithm>

#include "base/strings.h"
#include "protocol/messages.h"
#include "tests/model/model.h"

// What the controller has heard and told, and what may therefore be told: its machine's own belief is not
// asked.
namespace weightcast::model {

// --- What it hears ----------------------------------------------------------------------------------------

/// Before the controller does something about it.
void Model::Handle(World& world, int controller, int slot, uint32_t id) {
  const Message& message = machines_.message(id);
  const auto& value = std::get<protocol::WorkerMessage>(message.value);
  Ledger& ledger = world.processes[slot].seats[controller].ledger;
  if (const auto* published = std::get_if<protocol::Published>(&value)) {
    ledger.published = static_cast<uint8_t>(published->number);
    ledger.version = CodeOf(protocol::VersionOf(published->run, published->number));
    ledger.waits = 1;
  }
  if (const auto* failed = std::get_if<protocol::Failed>(&value))
    HearFailed(world, controller, slot, *failed);
  if (IsTrainer(slot)) return;
  if (const auto* registered = std::get_if<protocol::Register>(&value))
    ledger.serves = CodeOf(registered->version);
  if (const auto* serving = std::get_if<protocol::Serving>(&value)) ledger.serves = CodeOf(serving->version);
  if (const auto* aborted = std::get_if<protocol::Aborted>(&value)) HearAborted(ledger, slot, *aborted);
  if (message.update == 0 || message.update != ledger.update || ledger.standing != Standing::kIn) return;
  const auto reaches = [&](Heard heard) { ledger.heard = std::max(ledger.heard, heard); };
  if (std::holds_alternative<protocol::Granted>(value)) reaches(Heard::kGranted);
  if (std::holds_alternative<protocol::Ready>(value)) reaches(Heard::kReady);
  if (!std::holds_alternative<protocol::Committed>(value)) return;
  if (ledger.heard < Heard::kTold)
    Fail("two steps", StrCat(protocol::ToString(NameOf(slot)), " has switched before it was told Commit"));
  reaches(Heard::kCommitted);
}

/// What a trainer has sent that fails by itself may be wrong; not of one that only has the version no more.
void Model::HearFailed(World& world, int controller, int slot, const protocol::Failed& failed) {
  const bool itself = failed.update.sequence != 0 && failed.destination < 0;
  if (!IsTrainer(slot) || !itself || failed.reason.code() == Code::kCancelled) return;
  const uint16_t update = machines_.Add(failed.update);
  for (int other = config_.trainers; other < processes(); ++other) {
    Ledger& ledger = world.processes[other].seats[controller].ledger;
    const bool earlier = ledger.fresh != 0 && SameUpdate(ledger.update, failed.update);
    if (ledger.update == update || earlier) ledger.doubted = 1;
  }
}

/// "loss": no engine loses its version before a source was told to start.
void Model::HearAborted(Ledger& ledger, int slot, const protocol::Aborted& aborted) {
  const uint16_t update = machines_.Add(aborted.update);
  for (uint16_t& owed : ledger.owed)
    if (owed == update) owed = 0;
  if (update != ledger.update) return;
  if (aborted.lost && ledger.serves != kNothing && ledger.started == 0)
    Fail("loss", StrCat(protocol::ToString(NameOf(slot)), " has lost ", model::NameOf(ledger.serves),
                        ", but no source was told of its grants"));
  if (aborted.lost) ledger.serves = kNothing;
  // Its user may have given the update up.
  if (ledger.standing == Standing::kIn) ledger.standing = Standing::kApart;
}

// --- What it tells ----------------------------------------------------------------------------------------

void Model::Send(World& world, int controller, int slot, uint32_t id) {
  const auto& value = std::get<protocol::ControllerMessage>(machines_.message(id).value);
  Ledger& ledger = world.processes[slot].seats[controller].ledger;
  if (const auto* start = std::get_if<protocol::Start>(&value)) TellStart(world, controller, slot, *start);
  if (const auto* release = std::get_if<protocol::Release>(&value))
    CheckReleased(world, controller, release->update);
  if (IsTrainer(slot)) return TellTrainer(world, controller, slot, value);
  if (const auto* request = std::get_if<protocol::GrantRequest>(&value))
    TellRequest(world, controller, slot, *request);
  if (const auto* abort = std::get_if<protocol::Abort>(&value)) TellAbort(world, controller, slot, *abort);
  if (const auto* commit = std::get_if<protocol::Commit>(&value)) {
    CheckAllAt(world, controller, slot, commit->update, Heard::kReady, "Commit");
    if (ledger.doubted != 0)
      Fail("source", StrCat("the controller says Commit for ", protocol::ToString(NameOf(slot)),
                            ", though a source of its bytes has failed"));
    ledger.heard = std::max(ledger.heard, Heard::kTold);
  }
  if (const auto* serve = std::get_if<protocol::Serve>(&value)) {
    CheckAllAt(world, controller, slot, serve->update, Heard::kCommitted, "Serve");
    ledger.told = machines_.Add(serve->update);
  }
}

void Model::TellTrainer(World& world, int controller, int slot, const protocol::ControllerMessage& value) {
  Ledger& ledger = world.processes[slot].seats[controller].ledger;
  const auto* done = std::get_if<protocol::Done>(&value);
  const auto* superseded = std::get_if<protocol::Superseded>(&value);
  if (done != nullptr) CheckOutcome(world, controller, *done, ledger.waits != 0);
  const Version version = done != nullptr         ? done->version
                          : superseded != nullptr ? superseded->version
                                                  : Version{};
  if (version.number == ledger.published) ledger.waits = 0;
}

void Model::TellRequest(World& world, int controller, int slot, const protocol::GrantRequest& request) {
  Ledger& ledger = world.processes[slot].seats[controller].ledger;
  const uint16_t update = machines_.Add(request.update);
  if (request.part > 0) return TellNextPart(world, controller, slot, request);
  const bool goes_on = ledger.standing != Standing::kApart && ledger.told != ledger.update &&
                       SameUpdate(ledger.update, request.update);
  if (!goes_on) ledger.fresh = IsFresh(world, controller, request.version) ? 1 : 0;
  ledger.update = update;
  ledger.heard = Heard::kNone;
  ledger.standing = Standing::kIn;
  ledger.started = 0;
  ledger.doubted = 0;
  ledger.part = 0;
  ledger.version = CodeOf(request.version);
}

/// "parts": an engine is asked for the next part when all its ranks have the one before.
void Model::TellNextPart(World& world, int controller, int slot, const protocol::GrantRequest& request) {
  Ledger& ledger = world.processes[slot].seats[controller].ledger;
  for (int other = config_.trainers; other < processes(); ++other) {
    const Ledger& rank = world.processes[other].seats[controller].ledger;
    const bool has =
        rank.part == request.part || (rank.part + 1U == request.part && rank.heard >= Heard::kReady);
    if (EngineOf(other) == EngineOf(slot) && (!has || !SameUpdate(rank.update, request.update)))
      Fail("parts",
           StrCat("the controller asks ", protocol::ToString(NameOf(slot)), " for part ", request.part,
                  " before ", protocol::ToString(NameOf(other)), " has the one before"));
  }
  ledger.part = static_cast<uint16_t>(request.part);
  ledger.heard = Heard::kNone;
}

void Model::TellStart(World& world, int controller, int source, const protocol::Start& start) {
  const int to = DestinationOf(world, controller, source, start);
  if (to >= 0) CheckAllAt(world, controller, to, start.update, Heard::kGranted, "Start");
  const uint16_t update = machines_.Add(start.update);
  for (int slot = config_.trainers; slot < processes(); ++slot) {
    Ledger& ledger = world.processes[slot].seats[controller].ledger;
    if (ledger.update == update && (slot == to || to < 0)) ledger.started = 1;
  }
}

void Model::TellAbort(World& world, int controller, int slot, const protocol::Abort& abort) {
  Ledger& ledger = world.processes[slot].seats[controller].ledger;
  const uint16_t update = machines_.Add(abort.update);
  CheckAbort(world, controller, slot, update);
  if (std::count(ledger.owed.begin(), ledger.owed.end(), update) == 0)
    ledger.owed[ledger.owed[0] == 0 ? 0 : 1] = update;
  if (update != ledger.update) return;
  ledger.heard = Heard::kNone;
  ledger.standing = abort.reason.ok() ? Standing::kAgain : Standing::kApart;
}

// --- Who counts -------------------------------------------------------------------------------------------

bool Model::SameUpdate(uint16_t one, const protocol::UpdateId& other) const {
  const auto& update = machines_.update(one);
  return one != 0 && update.term == other.term && update.sequence == other.sequence;
}

/// All trainers have published it, and one has no answer yet: engines switch to it together. What is held for
/// engines that come later, or given by others, each takes by itself.
bool Model::IsFresh(const World& world, int controller, const Version& version) const {
  const auto trainers = world.processes.begin();
  const auto end = trainers + config_.trainers;
  return std::all_of(
             trainers, end,
             [&](const Process& p) { return p.seats[controller].ledger.published == version.number; }) &&
         std::any_of(trainers, end, [&](const Process& p) { return p.seats[controller].ledger.waits != 0; });
}

/// To which process a source writes that is told to start; -1: the source has died or left, or given its plan
/// up.
int Model::DestinationOf(const World& world, int controller, int source, const protocol::Start& start) const {
  const Process& p = world.processes[source];
  const uint32_t plan = IsTrainer(source) ? p.plan : p.giving;
  if (!Follows(p, controller) || plan == 0 || EpochOf(plan) != start.update.epoch) return -1;
  return SlotOf(PlanOf(plan).peers.at(start.grants.at(0).destination).name);
}

/// Whether a rank takes part in this update to a fresh version, in whichever attempt.
bool Model::IsIn(const World& world, int controller, int slot, const protocol::UpdateId& update) const {
  const Ledger& ledger = world.processes[slot].seats[controller].ledger;
  if (ledger.fresh == 0 || ledger.standing == Standing::kApart || !SameUpdate(ledger.update, update))
    return false;
  if (ledger.standing == Standing::kIn || ledger.started != 0) return true;
  // Whoever had not granted may have been left behind for a version that is newer.
  const auto newer = [&](const Process& p) {
    return OrderOf(p.seats[controller].ledger.version) > OrderOf(ledger.version);
  };
  return !std::all_of(world.processes.begin(), world.processes.begin() + config_.trainers, newer);
}

// --- What must hold ---------------------------------------------------------------------------------------

/// "two steps" for the ranks of an engine, "policy" for engines that switch together: Start only when all
/// have granted, Commit only when all are Ready; Serve only when all ranks of the engine have switched.
void Model::CheckAllAt(const World& world, int controller, int slot, const protocol::UpdateId& update,
                       Heard least, const char* what) {
  static constexpr const char* kMissing[] = {"", " has granted", " is ready", "", " has switched"};
  const std::string told = StrCat("the controller says ", what, " for ", protocol::ToString(NameOf(slot)));
  const Ledger& ledger = world.processes[slot].seats[controller].ledger;
  if (ledger.update != machines_.Add(update))
    Fail("two steps", told + " of an update that it was not asked last");
  // Later parts each engine grants by itself.
  const bool later = least == Heard::kGranted && ledger.part > 0;
  const bool together = config_.together && ledger.fresh != 0 && least != Heard::kCommitted && !later;
  for (int other = config_.trainers; other < processes(); ++other) {
    const bool own = EngineOf(other) == EngineOf(slot);
    const bool counts = own || (together && IsIn(world, controller, other, update));
    const Ledger& its = world.processes[other].seats[controller].ledger;
    const bool granted = least == Heard::kGranted;
    const bool beyond = granted && its.part > ledger.part;
    const bool there = its.heard >= least && (granted || its.part + 1 == config_.parts);
    if (!counts || beyond || there) continue;
    Fail(own ? "two steps" : "policy",
         StrCat(told, " before ", protocol::ToString(NameOf(other)), kMissing[static_cast<int>(least)]));
  }
}

/// "sources": they are kept until every rank that takes part has every byte.
void Model::CheckReleased(const World& world, int controller, const protocol::UpdateId& update) {
  for (int slot = config_.trainers; slot < processes(); ++slot) {
    const Ledger& ledger = world.processes[slot].seats[controller].ledger;
    const bool ready = ledger.heard >= Heard::kReady && ledger.part + 1 == config_.parts;
    if (!ready && IsIn(world, controller, slot, update))
      Fail("sources",
           StrCat("the controller says Release before ", protocol::ToString(NameOf(slot)), " is ready"));
  }
}

/// "outcome": Done names nobody as committed who took part and was not told to serve; with policy all it is
/// well only if everybody who took part was. Whoever has come again since is no part of it.
void Model::CheckOutcome(const World& world, int controller, const protocol::Done& done, bool fresh) {
  for (int slot = config_.trainers; slot < processes(); ++slot) {
    const Ledger& ledger = world.processes[slot].seats[controller].ledger;
    const bool serves = SameUpdate(ledger.told, done.update) || ledger.serves == CodeOf(done.version);
    if (!SameUpdate(ledger.update, done.update) || serves) continue;
    const bool named =
        std::any_of(done.engines.begin(), done.engines.end(), [&](const protocol::EngineOutcome& outcome) {
          return outcome.committed && outcome.engine == NameOf(slot).engine;
        });
    if (named || (done.met_policy && config_.together && fresh && ledger.fresh != 0))
      Fail("outcome", StrCat("Done says that all is well with ", protocol::ToString(NameOf(slot)),
                             ", which was not told to serve"));
  }
}

}  // namespace weightcast::model
