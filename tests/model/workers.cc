#include <algorithm>

#include "base/strings.h"
#include "tests/model/model.h"

// Workers' runtimes and their users.
namespace weightcast::model {

using protocol::Landing;
using worker::UserCall;

void Model::Dispatch(World& world, int slot, In kind, uint32_t arg) {
  IsTrainer(slot) ? FeedTrainer(world, slot, kind, arg) : FeedRank(world, slot, kind, arg);
}

// --- An inference rank ------------------------------------------------------------------------------------

void Model::FeedRank(World& world, int slot, In kind, uint32_t arg) {
  Process& p = world.processes[slot];
  const UserCall before = machines_.rank(p.machine).call;
  const Taken taken = machines_.StepRank(p.machine, kind, arg);
  p.machine = taken.next;
  CheckServed(world, slot);
  CheckLanded(world, slot);
  Opened opened;
  const UserCall call = before != UserCall::kNone ? before : immediate_;
  for (uint32_t i = 0; i < taken.count; ++i) {
    const Effect effect = machines_.effect(taken.first + i);
    CarryRank(world, slot, effect, call, opened);
  }
  CheckServed(world, slot);
  if (opened.kind != In::kEnded) FeedRank(world, slot, opened.kind, opened.arg);
}

void Model::CarryRank(World& world, int slot, const Effect& effect, UserCall call, Opened& opened) {
  Process& p = world.processes[slot];
  switch (effect.what) {
    case Do::kSend:
      return Say(world, slot, effect.c);
    case Do::kRegister:
      return SayRegistration(world, slot);
    case Do::kOpen:
      return OpenGrants(world, slot, effect.b, opened);
    case Do::kReclaim:
      return FeedPeerSource(world, slot, In::kReclaim, 0);
    case Do::kRevoke:
      if (p.grants != GrantState::kOpen || p.grant != effect.b) Fail("grant", "revokes what is not open");
      p.grants = GrantState::kRevoking;
      return;
    case Do::kVerify:
      p.verifying = 1;
      return;
    case Do::kCopy:
      if (p.paused == 0) Fail("mixture", "copies while the engine reads the live tensors");
      p.copying = 1;
      if (!config_.loader) p.live.fill(kTorn);
      return;
    case Do::kAnswer:
      return OnAnswer(world, slot, static_cast<Code>(effect.a), call, effect.b);
    default:
      return;
  }
}

/// Only when every source is connected.
void Model::OpenGrants(World& world, int slot, uint16_t update, Opened& opened) {
  Process& p = world.processes[slot];
  CheckOpening(world, slot);
  if (const int gone = FirstGone(world, p.plan); gone >= 0) {
    opened = {In::kOpenFailed, update | static_cast<uint32_t>(gone) << 16};
    return;
  }
  uint32_t sources = 0;
  const auto& peers = PlanOf(p.plan).peers;
  for (size_t i = 0; i < peers.size(); ++i)
    if (peers[i].incarnation != 0) sources |= 1U << i;
  p.grants = GrantState::kOpen;
  p.grant = update;
  p.arrived = 0;
  ++p.grant_serial;
  opened = {In::kOpened, update | static_cast<uint32_t>(p.grant_serial) << 16 | sources << 24};
}

// --- Registering
// ------------------------------------------------------------------------------------------

/// Whoever reads the old memory is asked to let go of it; the user waits for that.
void Model::AskToRegister(World& world, int slot, bool same_memory) {
  FeedPeerSource(world, slot, In::kReclaim, 1);
  world.processes[slot].registering = same_memory ? 2 : 1;
}

void Model::Register(World& world, int slot) {
  FeedRank(world, slot, In::kRegister, world.processes[slot].registering == 2 ? 1 : 0);
  world.processes[slot].registering = 0;
}

/// What was registered is taken: the memory before it is the user's again.
void Model::FreeMemory(World& world, int slot) {
  Process& p = world.processes[slot];
  CheckUnread(world, slot, "registers other memory");
  if (p.grants != GrantState::kNone || p.copying != 0 || p.verifying != 0)
    Fail("grant",
         StrCat(protocol::ToString(NameOf(slot)), " registers other memory while its own is in use"));
  p.spare.fill(kGarbage);
  if (p.registering == 2) return;
  p.live.fill(kGarbage);
  p.newest = kNothing;
}

/// What the engine's user does with the answer of its call.
void Model::OnAnswer(World& world, int slot, Code code, UserCall call, uint16_t part) {
  Process& p = world.processes[slot];
  const bool may_retry =
      (code == Code::kTimedOut || code == Code::kCancelled) && !machines_.rank(p.machine).ended;
  switch (call) {
    case UserCall::kNone:  // Register and Begin.
      if (p.registering != 0 && code == Code::kOk) FreeMemory(world, slot);
      return;
    case UserCall::kSuspend:  // Nobody sleeps here.
      return;
    case UserCall::kReceive:
      if (code == Code::kOk)
        p.user = part + 1 < config_.parts ? UserAt::kHandingOn : UserAt::kReceived;
      else if (!may_retry)
        p.user = UserAt::kMustAbort;
      return;
    case UserCall::kFinish:
      if (code != Code::kOk) {
        if (!may_retry) p.user = UserAt::kMustAbort;
        return;
      }
      [[fallthrough]];
    case UserCall::kWait:
    case UserCall::kAbort:
      p.user = UserAt::kOutside;
      p.paused = code == Code::kFenced ? 1 : 0;
      if (call != UserCall::kAbort) return;
      if (code == Code::kFenced) {
        p.user = UserAt::kMustAbort;
      } else if (machines_.rank(p.machine).user != worker::UserPhase::kOutside) {
        Fail("calls end", StrCat("after an Abort that ended ", protocol::ToString(NameOf(slot)),
                                 " is still between Begin and Finish"));
      }
      return;
  }
}

void Model::CallFor(World& world, int slot, In kind, UserCall call) {
  world.processes[slot].paused = 1;
  immediate_ = call;
  FeedRank(world, slot, kind, 0);
  immediate_ = UserCall::kNone;
}

void Model::Call(World& world, int slot) {
  Process& p = world.processes[slot];
  if (!config_.phases) {
    if (p.user == UserAt::kMustAbort) return CallFor(world, slot, In::kAbort, UserCall::kAbort);
    return CallFor(world, slot, In::kWait, UserCall::kWait);
  }
  switch (p.user) {
    case UserAt::kOutside:
      CallFor(world, slot, In::kBegin, UserCall::kNone);
      p.user = UserAt::kBegun;
      return;
    case UserAt::kHandingOn:  // It has.
      p.user = UserAt::kBegun;
      [[fallthrough]];
    case UserAt::kBegun:
      if ((tired_ >> slot & 1) != 0) return CallFor(world, slot, In::kAbort, UserCall::kAbort);
      return CallFor(world, slot, In::kReceive, UserCall::kReceive);
    case UserAt::kReceived:
      return CallFor(world, slot, In::kFinish, UserCall::kFinish);
    case UserAt::kMustAbort:
      return CallFor(world, slot, In::kAbort, UserCall::kAbort);
  }
}

// --- An inference rank as a source
// --------------------------------------------------------------------------

void Model::FeedPeerSource(World& world, int slot, In kind, uint32_t arg) {
  Process& p = world.processes[slot];
  const bool lent = worker::Lends(machines_.peer_source(p.peer_source));
  const Taken taken = machines_.StepPeerSource(p.peer_source, kind, arg);
  p.peer_source = taken.next;
  const auto& state = machines_.peer_source(p.peer_source);
  if (state.epoch == 0) {  // The plan is void.
    p.giving = 0;
    p.joining = 0;
  }
  if (worker::Lends(state) != lent) FeedRank(world, slot, lent ? In::kFree : In::kLent, 0);
  for (uint32_t i = 0; i < taken.count; ++i) CarrySource(world, slot, machines_.effect(taken.first + i));
}

void Model::TakeGivingPlan(World& world, int slot, uint32_t message) {
  Process& p = world.processes[slot];
  FeedPeerSource(world, slot, In::kPlan, message);
  if (machines_.peer_source(p.peer_source).ended) return;
  p.giving = message;
  p.joining = 1;
}

void Model::FeedSource(World& world, int slot, In kind, uint32_t arg) {
  IsTrainer(slot) ? FeedTrainer(world, slot, kind, arg) : FeedPeerSource(world, slot, kind, arg);
}

void Model::CarrySource(World& world, int slot, const Effect& effect) {
  switch (effect.what) {
    case Do::kBegin:
      return BeginWrite(world, slot, effect);
    case Do::kStop:
      return StopWrite(world, slot, effect);
    default:
      return Say(world, slot, effect.c);
  }
}

// --- A trainer
// ----------------------------------------------------------------------------------------------

void Model::FeedTrainer(World& world, int slot, In kind, uint32_t arg) {
  Process& p = world.processes[slot];
  const Taken taken = machines_.StepTrainer(p.machine, kind, arg);
  p.machine = taken.next;
  for (uint32_t i = 0; i < taken.count; ++i) CarryTrainer(world, slot, machines_.effect(taken.first + i));
}

void Model::CarryTrainer(World& world, int slot, const Effect& effect) {
  Process& p = world.processes[slot];
  switch (effect.what) {
    case Do::kSend:
      return Say(world, slot, effect.c);
    case Do::kRegister:
      return SayRegistration(world, slot);
    case Do::kBegin:
    case Do::kStop:
      return CarrySource(world, slot, effect);
    case Do::kHold:
      if (effect.c == p.number) p.busy = 1;
      return;
    case Do::kFree:
      if (effect.c != p.number) return;
      CheckFreed(world, slot, effect.c);
      p.busy = 0;
      // Without `hold` the user changes the bytes at once.
      if (!config_.hold) p.content = kGarbage;
      return;
    default:
      return;
  }
}

void Model::Publish(World& world, int slot) {
  Process& p = world.processes[slot];
  ++p.number;
  p.busy = 1;
  const protocol::Run run = machines_.trainer(p.machine).run;
  p.run = static_cast<uint8_t>(run.number);
  const bool anew = std::any_of(world.processes.begin(), world.processes.begin() + config_.trainers,
                                [&](const Process& trainer) { return trainer.former >= p.run; });
  p.content = static_cast<Content>(CodeOf(protocol::VersionOf(run, p.number)) | (anew ? kAnew : kNothing));
  FeedTrainer(world, slot, In::kPublish, uint32_t{p.number} | (config_.hold ? 0x100U : 0U));
}

}  // namespace weightcast::model
