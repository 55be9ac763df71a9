#include <algorithm>

#include "base/strings.h"
#include "protocol/messages.h"
#include "tests/model/model.h"

// The promises.
namespace weightcast::model {

using protocol::Landing;
using worker::Step;

void Model::Fail(const char* property, std::string text) {
  if (!violation_) violation_ = Violation{property, std::move(text)};
}

bool Model::Holds(Content box, Content version) const {
  if (box >= kGarbage) return false;
  return (box & ~kAnew) == version || (!config_.runs && box % kAnew == version % kAnew);
}

/// "mixture": whoever says that it serves a version holds that version and nothing else, in every box, and
/// nobody writes there; the ranks of an engine that serve at one time serve the same.
/// "taken back": what a process serves is never older than what it has served.
void Model::CheckServed(const World& world, int slot) {
  const Process& p = world.processes[slot];
  if (p.life == Life::kDead) return;
  const auto& state = machines_.rank(p.machine);
  if (state.served.number < 0) return;
  const Content served = CodeOf(state.served);
  const std::string who = StrCat(protocol::ToString(NameOf(slot)), " serves ", model::NameOf(served));
  for (int box = 0; box < kBoxes; ++box)
    if (!Holds(p.live[box], served))
      Fail("mixture", StrCat(who, ", but box ", box, " holds ", model::NameOf(p.live[box])));
  if (config_.runs && p.live[0] != p.live[1])
    Fail("mixture", StrCat(who, ", but its boxes were published before and after a restart"));
  if (p.copying != 0) Fail("mixture", StrCat(who, " while it copies into the live tensors"));
  if (config_.landing == Landing::kInPlace && p.grants != GrantState::kNone)
    Fail("grant", StrCat(who, " while its live tensors may be written"));
  for (int other = config_.trainers; other < processes(); ++other) {
    const Process& q = world.processes[other];
    if (other == slot || EngineOf(other) != EngineOf(slot) || q.life == Life::kDead) continue;
    const auto& version = machines_.rank(q.machine).served;
    if (version.number >= 0 && version != state.served)
      Fail("mixture", StrCat(who, " while ", protocol::ToString(NameOf(other)), " serves ",
                             model::NameOf(CodeOf(version))));
  }
  // Two controllers that know nothing of each other may count one run.
  const int differs = served ^ p.newest;
  const bool unclear = (differs >> 4 & 15) == 0 && differs >> 8 != 0;
  if (p.newest != kNothing && (OrderOf(served) < OrderOf(p.newest) || unclear))
    Fail("taken back", StrCat(who, " after it has served ", model::NameOf(p.newest)));
  const_cast<Process&>(p).newest = served;
}

/// "grant": bytes land only where the machine waits for them, and never where the engine reads.
void Model::CheckLanding(const World& world, int write) {
  const Write& w = world.writes[write];
  const int slot = w.target;
  const Process& p = world.processes[slot];
  const std::string what = StrCat("bytes of ", protocol::ToString(NameOf(w.source)), " land in ",
                                  protocol::ToString(NameOf(slot)));
  const auto& state = machines_.rank(p.machine);
  const bool waits =
      state.step == Step::kWriting || state.step == Step::kFencing || state.step == Step::kAborting;
  const bool same = p.grants != GrantState::kNone && p.grant_serial == w.serial && p.grant == w.update;
  if (!same || !waits || machines_.Add(state.update) != w.update)
    Fail("grant", StrCat(what, " outside its grant"));
  if (config_.landing == Landing::kInPlace && p.paused == 0)
    Fail("grant", StrCat(what, " while its engine runs"));
  if (p.user == UserAt::kHandingOn)
    Fail("parts", StrCat(what, " while its engine hands on what came before"));
}

/// "grant": one open grant set, over memory that is fenced and that nobody reads.
void Model::CheckOpening(const World& world, int slot) {
  const Process& p = world.processes[slot];
  const std::string who = StrCat(protocol::ToString(NameOf(slot)), " opens grants");
  if (p.grants != GrantState::kNone) Fail("grant", StrCat(who, " before the last ones are fenced"));
  if (p.copying != 0 || p.verifying != 0) Fail("grant", StrCat(who, " for memory that is being read"));
  if (config_.landing == Landing::kInPlace && p.paused == 0)
    Fail("grant", StrCat(who, " while its engine runs"));
  if (p.user == UserAt::kHandingOn) Fail("parts", StrCat(who, " while its engine hands on what came before"));
  CheckUnread(world, slot, "opens grants");
}

/// "given": what a rank says that others may read is there, whole.
void Model::CheckLanded(const World& world, int slot) {
  const auto& state = machines_.rank(world.processes[slot].machine);
  if (state.landed.number < 0) return;
  Process p = world.processes[slot];
  for (const Content box : LandingOf(p))
    if (!Holds(box, CodeOf(state.landed)))
      Fail("given", StrCat(protocol::ToString(NameOf(slot)), " offers ", model::NameOf(CodeOf(state.landed)),
                           " to others, but a box holds ", model::NameOf(box)));
}

/// "given": a rank sends nothing else than what it was asked for.
void Model::CheckGiven(const World& world, int slot, Content version, uint8_t boxes) {
  Process p = world.processes[slot];
  const auto& memory = LandingOf(p);
  for (int box = 0; box < kBoxes; ++box)
    if ((boxes >> box & 1) != 0 && !Holds(memory[box], version))
      Fail("given", StrCat(protocol::ToString(NameOf(slot)), " gives ", model::NameOf(memory[box]), " as ",
                           model::NameOf(version)));
}

/// "given": a rank's memory is not written or let go while others read it.
void Model::CheckUnread(const World& world, int slot, const char* what) {
  for (const Write& w : world.writes)
    if (w.source == slot && (w.job == Job::kSending || w.job == Job::kEnding))
      Fail("given", StrCat(protocol::ToString(NameOf(slot)), " ", what, " while its memory is read for ",
                           protocol::ToString(NameOf(w.target))));
}

/// "two steps" and "grant": what a rank may say of an update.
void Model::CheckSaid(const World& world, int slot, uint32_t id) {
  if (IsTrainer(slot)) return;
  const Process& p = world.processes[slot];
  const Message& message = machines_.message(id);
  if (message.update == 0) return;
  const auto& value = std::get<protocol::WorkerMessage>(message.value);
  const bool ready = std::holds_alternative<protocol::Ready>(value);
  const bool committed = std::holds_alternative<protocol::Committed>(value);
  const bool aborted = std::holds_alternative<protocol::Aborted>(value);
  const bool open = p.grants != GrantState::kNone && (p.grant == message.update || ready || committed);
  if ((ready || committed || aborted) && open)
    Fail("grant",
         StrCat(protocol::ToString(NameOf(slot)), " says ", protocol::NameOf(value), " before the fence"));
  if (!committed) return;
  const Content wanted = CodeOf(machines_.rank(p.machine).version);
  for (int box = 0; box < kBoxes; ++box)
    if (!Holds(p.live[box], wanted))
      Fail("two steps", StrCat(protocol::ToString(NameOf(slot)), " says Committed of ", model::NameOf(wanted),
                               ", but box ", box, " holds ", model::NameOf(p.live[box])));
}

/// "ids": each request for grants names an update that is newer than those before, or its next part.
void Model::CheckAsked(World& world, int slot, uint32_t message) {
  const auto& value = std::get<protocol::ControllerMessage>(machines_.message(message).value);
  const auto* request = std::get_if<protocol::GrantRequest>(&value);
  if (request == nullptr) return;
  Process& p = world.processes[slot];
  const uint16_t update = machines_.message(message).update;
  if (request->part > 0 && update == p.asked) return;
  if (update == 0 || (p.asked != 0 && machines_.update(update) <= machines_.update(p.asked)))
    Fail("ids", StrCat(protocol::ToString(NameOf(slot)), " is asked again for grants of ",
                       protocol::ToString(machines_.update(update))));
  p.asked = update;
}

/// "taken back": no Abort after Serve.
void Model::CheckAbort(const World& world, int controller, int slot, uint16_t update) {
  for (int other = config_.trainers; other < processes(); ++other) {
    const uint16_t told = world.processes[other].seats[controller].ledger.told;
    if (EngineOf(other) != EngineOf(slot) || told == 0 || machines_.update(told) < machines_.update(update))
      continue;
    Fail("taken back", StrCat("the controller aborts for ", protocol::ToString(NameOf(slot)), " what ",
                              protocol::ToString(NameOf(other)), " was told to serve"));
  }
}

/// "sources": the user is not told that they may change while a write reads them.
void Model::CheckFreed(const World& world, int slot, uint32_t number) {
  for (const Write& w : world.writes) {
    const bool reads = w.source == slot && (w.job == Job::kSending || w.job == Job::kEnding);
    if (reads && world.processes[slot].number == number)
      Fail("sources", StrCat(protocol::ToString(NameOf(slot)), " frees the sources of v", number, " while ",
                             protocol::ToString(NameOf(w.target)), " is still written to"));
  }
}

}  // namespace weightcast::model
