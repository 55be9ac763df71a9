#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "worker/inference_transition.h"

namespace weightcast::worker {

using protocol::EngineState;
using protocol::Landing;

// --- The controller's messages ----------------------------------------------------------------------

void InferenceTransition::operator()(const protocol::Welcome& welcome) {
  if (s_.ended || welcome.term < s_.term) return;
  // A new session: the controller knows no more of an update that was under way.
  BeginAbort({Code::kUnavailable,
              StrCat("the controller began a new session, which ends ", protocol::ToString(s_.update),
                     "; it offers the version again: call Receive again, or Abort")},
             /*tell=*/false);
  s_.next.reset();
  s_.retried = s_.closed_silently = false;
  s_.term = welcome.term;
  s_.epoch = 0;
  s_.prepared = false;
  if (s_.suspended) return Send(protocol::Suspended{});
  Do(SendRegistration{});
}

void InferenceTransition::operator()(const protocol::Controlled&) { s_.controlled = true; }

void InferenceTransition::operator()(const PlanArrived& plan) {
  if (s_.suspended) return;  // It was sent before Suspended came there.
  // Everything of older epochs is void, but for what has wholly come: others of the engine may get theirs
  // anew.
  if (s_.step != Step::kReady || s_.abort || !IsLastPart())
    LeaveBehind(
        {Code::kUnavailable, StrCat("the plan changed, which ends ", protocol::ToString(s_.update),
                                    "; it begins again under the new plan: call Receive again, or Abort")});
  s_.next.reset();
  s_.epoch = plan.epoch;
  s_.prepared = false;
  s_.loss = Status::Ok();
  s_.loss_told = false;
}

void InferenceTransition::operator()(const protocol::GrantRequest& request) {
  if (s_.ended || request.update.term != s_.term || request.update <= s_.closed) return;
  if (s_.step == Step::kNone) return Request(request);
  if (request.update == s_.update && request.part == s_.part + 1 && s_.step == Step::kReady && !s_.abort)
    return NextPart();
  if (request.update <= s_.update) return;
  // The controller has left the update at hand; this one begins when that one's memory is fenced.
  s_.next = request;
  LeaveBehind({Code::kCancelled,
               StrCat(protocol::ToString(s_.update), " was left for a later update; wait for that one")});
}

void InferenceTransition::operator()(const protocol::Commit& commit) {
  if (!IsCurrent(commit.update, Step::kReady) || !IsLastPart()) return;
  s_.commit = true;
  TrySwitch();
}

void InferenceTransition::operator()(const protocol::Serve& serve) {
  if (!IsCurrent(serve.update, Step::kCommitted)) return;
  s_.served = s_.version;
  s_.newest = protocol::LaterOf(s_.newest, s_.served);
  s_.state = EngineState::kServing;
  s_.failed = false;
  s_.last_error = Status::Ok();
  Close(/*lost=*/false);
  Send(protocol::Serving{serve.update, s_.served});
  const bool waiting = s_.call != UserCall::kNone;
  s_.cut_short = false;
  s_.user = waiting ? UserPhase::kOutside : UserPhase::kFinished;
  if (waiting) Answer(Status::Ok(), s_.served);
}

void InferenceTransition::operator()(const protocol::Abort& abort) {
  if (abort.update.term != s_.term) return;
  if (s_.next && s_.next->update == abort.update) {
    s_.next.reset();
    Send(protocol::Aborted{abort.update, false, s_.landed});
    return abort.reason.ok() ? void() : BeginAbort(abort.reason, /*tell=*/false);
  }
  if (s_.step != Step::kNone && s_.update == abort.update) {
    // No source knows the grants: nobody has written.
    if (!abort.started && (s_.step <= Step::kReady || s_.step == Step::kAborting)) s_.touched = false;
    s_.retried = abort.reason.ok() && abort.started;
    return BeginAbort(abort.reason, /*tell=*/true);
  }
  const bool newest = abort.update == s_.closed;
  Send(protocol::Aborted{abort.update, newest && s_.closed_lost, s_.landed});
  if (!newest || !s_.closed_silently || abort.reason.ok() || s_.step != Step::kNone) return;
  // There was no other source after all.
  s_.retried = s_.closed_silently = false;
  s_.last_error = abort.reason;
  TellAbort(abort.reason);
}

void InferenceTransition::operator()(const protocol::Lost& lost) {
  const bool needed = lost.name.role == protocol::Role::kTrainer || lost.name.engine == s_.self.engine;
  if (!needed || s_.ended) return;
  s_.last_error = lost.reason;
  s_.loss = lost.reason;
  s_.loss_told = false;
  TellLoss();
}

void InferenceTransition::operator()(const SessionEnded& ended) {
  if (s_.ended) return;
  s_.ended = true;
  s_.end = ended.reason;
  s_.last_error = ended.reason;
  s_.next.reset();
  if (std::exchange(s_.abort_told, false)) s_.abort_reason = ended.reason;  // To whoever has called since.
  if (s_.step != Step::kNone) return BeginAbort(ended.reason, /*tell=*/false);
  if (s_.call != UserCall::kNone) AnswerError(ended.reason);
}

// --- The data plane -----------------------------------------------------------------------------------

void InferenceTransition::operator()(const PlanReady& ready) {
  if (ready.epoch != s_.epoch || s_.ended) return;
  s_.prepared = true;
  Send(protocol::Prepared{.epoch = s_.epoch, .connections = ready.connections});
}

void InferenceTransition::operator()(const PlanFailed& failed) {
  if (failed.epoch != s_.epoch || s_.ended) return;
  s_.last_error = failed.reason;
  Send(protocol::Failed{.update = {.term = s_.term, .epoch = s_.epoch}, .reason = failed.reason});
}

void InferenceTransition::operator()(const GrantsOpened& opened) {
  if (!IsCurrent(opened.update, Step::kOpening)) return;
  if (s_.abort) {  // Nobody was told their names.
    s_.step = Step::kAborting;
    return Do(RevokeGrants{opened.update});
  }
  s_.touched = s_.landing == Landing::kInPlace;
  s_.step = Step::kWriting;
  Send(protocol::Granted{
      .update = opened.update, .grants = opened.grants, .part = s_.part, .compares = s_.compares});
}

void InferenceTransition::operator()(const OpenFailed& failed) {
  if (!IsCurrent(failed.update, Step::kOpening)) return;
  s_.step = Step::kRequested;
  if (s_.abort) return CompleteAbort();
  if (failed.source < 0) return Fail(failed.reason);
  AskForSource(failed.reason, failed.source);
  s_.fenced = true;
}

void InferenceTransition::operator()(const Arrived& arrived) {
  if (!IsCurrent(arrived.update, Step::kWriting)) return;
  s_.bytes += arrived.bytes;
  s_.seconds += arrived.seconds;
  for (const protocol::SourceBytes& source : arrived.sources) {
    const auto known = std::ranges::find(s_.sources, source.source, &protocol::SourceBytes::source);
    if (known == s_.sources.end()) {
      s_.sources.push_back(source);
    } else {
      known->bytes += source.bytes;
      known->seconds += source.seconds;
    }
  }
  s_.step = Step::kFencing;
  Do(RevokeGrants{arrived.update});
}

void InferenceTransition::operator()(const SourceLost& lost) {
  if (!IsCurrent(lost.update, Step::kWriting)) return;
  AskForSource(lost.reason, lost.source);
  Do(RevokeGrants{s_.update});
}

/// The call that waits is told nothing until the controller has found another source, or none.
void InferenceTransition::AskForSource(const Status& reason, int64_t source) {
  Send(protocol::Failed{.update = s_.update, .reason = reason, .source = source});
  s_.abort = s_.uncertain = s_.undecided = true;
  s_.abort_reason = reason;
  s_.step = Step::kAborting;
}

void InferenceTransition::operator()(const GrantsFenced& fenced) {
  if (IsCurrent(fenced.update, Step::kAborting)) {
    s_.fenced = true;
    return s_.uncertain ? void() : CompleteAbort();
  }
  if (!IsCurrent(fenced.update, Step::kFencing)) return;
  if (!s_.verify) return BecomeReady();
  s_.step = Step::kVerifying;
  Do(VerifyChecksums{fenced.update});
}

void InferenceTransition::operator()(const SpareSetAside& aside) {
  if (!IsCurrent(aside.update, Step::kAborting) || s_.fenced || s_.landing != Landing::kShadow) return;
  // The plan is void with the old buffer, and so is a request of it: Register says so.
  s_.epoch = 0;
  s_.prepared = false;
  if (s_.call != UserCall::kSuspend && !s_.ended) Do(SendRegistration{});
  s_.fenced = true;
  if (!s_.uncertain) CompleteAbort();
}

void InferenceTransition::operator()(const Verified& verified) {
  if (!IsCurrent(verified.update, Step::kVerifying)) return;
  if (s_.abort) return CompleteAbort();
  s_.compared += verified.compared;
  if (verified.status.ok()) return BecomeReady();
  s_.step = Step::kReady;  // As far as the memory goes: nobody touches it.
  Fail(verified.status);
}

void InferenceTransition::operator()(const SwitchRun& run) {
  if (!IsCurrent(run.update, Step::kSwitching)) return;
  if (!run.status.ok()) s_.touched = s_.landing == Landing::kInPlace || run.changed;
  if (s_.abort) return CompleteAbort();
  if (run.status.ok()) return Switched();
  s_.step = Step::kReady;  // As far as the memory goes: nobody touches it.
  Fail(run.status);
}

void InferenceTransition::operator()(const MemoryFree&) {
  s_.lent = s_.reclaiming = false;
  if (s_.step == Step::kAborting && s_.fenced && !s_.uncertain) return CompleteAbort();
  TryOpen();
}

// --- Parts of transitions -------------------------------------------------------------------------------

void InferenceTransition::Request(const protocol::GrantRequest& request) {
  if (s_.epoch == 0) return;  // It was sent before our Register came there, which takes it back.
  if (!s_.prepared || request.update.epoch != s_.epoch || request.part != 0) {
    s_.closed = request.update;
    s_.closed_lost = s_.closed_silently = false;
    const Status reason(
        Code::kProtocol,
        StrCat("the controller asked for grants of part ", request.part, " in epoch ", request.update.epoch,
               ", but this rank is prepared for ", s_.prepared ? StrCat("epoch ", s_.epoch) : "none",
               "; use the same weightcast on all hosts"));
    return Send(protocol::Failed{.update = request.update, .reason = reason});
  }
  s_.retried = s_.closed_silently = false;
  s_.step = Step::kRequested;
  s_.update = request.update;
  s_.version = request.version;
  s_.before = s_.served;
  TryOpen();
}

/// Every rank of the engine has the part at hand: its memory is granted anew when the engine has taken it
/// over.
void InferenceTransition::NextPart() {
  ++s_.part;
  s_.step = Step::kRequested;
  s_.handover = Handover::kDue;
  if (s_.call == UserCall::kReceive) HandOver();
}

void InferenceTransition::HandOver() {
  s_.handover = Handover::kWithEngine;
  Answer(Status::Ok(), s_.version, s_.part - 1);
}

void InferenceTransition::TryOpen() {
  const bool taken_over = s_.handover == Handover::kNone;
  const bool may = s_.landing == Landing::kShadow || (s_.user == UserPhase::kBegun && taken_over);
  if (s_.step != Step::kRequested || !may) return;
  if (s_.lent) {  // Nobody may read what is being written.
    if (!std::exchange(s_.reclaiming, true)) Do(ReclaimMemory{});
    return;
  }
  s_.step = Step::kOpening;
  s_.landed = {};
  s_.state = EngineState::kUpdating;
  if (s_.landing == Landing::kInPlace) s_.served = {};
  Do(OpenGrants{.update = s_.update, .part = s_.part});
}

void InferenceTransition::BecomeReady() {
  s_.step = Step::kReady;
  if (IsLastPart()) s_.state = EngineState::kReady;
  if (s_.parts == 1) s_.landed = s_.version;
  Send(protocol::Ready{.update = s_.update,
                       .bytes = s_.bytes,
                       .seconds = s_.seconds,
                       .sources = s_.sources,
                       .part = s_.part,
                       .compared = s_.compared});
}

void InferenceTransition::TrySwitch() {
  const bool waiting = s_.call == UserCall::kReceive || s_.call == UserCall::kWait;
  if (s_.step != Step::kReady || !s_.commit || !waiting || s_.user != UserPhase::kBegun) return;
  if (!s_.runs_switch) return Switched();
  s_.step = Step::kSwitching;
  s_.touched = true;
  s_.served = {};
  Do(RunSwitch{s_.update});
}

void InferenceTransition::Switched() {
  s_.step = Step::kSwitched;
  if (s_.call == UserCall::kWait) return CommitSwitch();
  s_.user = UserPhase::kReceived;
  Answer(Status::Ok(), s_.version, s_.part);
}

void InferenceTransition::CommitSwitch() {
  s_.step = Step::kCommitted;
  s_.state = EngineState::kCommitted;
  s_.user = UserPhase::kFinishing;
  Send(protocol::Committed{s_.update});
}

void InferenceTransition::Fail(const Status& reason) {
  if (!s_.ended) Send(protocol::Failed{.update = s_.update, .reason = reason});
  const bool uncertain = !s_.ended && s_.step == Step::kWriting && s_.touched && s_.before.number >= 0;
  BeginAbort(reason, /*tell=*/false);
  s_.uncertain = uncertain;  // The controller's Abort will say.
}

/// The user's wish: the call is answered when the memory is fenced.
void InferenceTransition::GiveUp(const Status& reason) {
  if (s_.undecided) {  // Another source would not matter any more.
    s_.undecided = false;
    s_.uncertain = s_.touched && s_.before.number >= 0;
    if (s_.fenced && !s_.uncertain) return CompleteAbort();
  }
  if (s_.step != Step::kAborting) Fail(reason);
}

void InferenceTransition::Suspend() {
  // The plan is void with the registration, and so is a request of it: Suspended says so.
  if (s_.step == Step::kRequested) Close(/*lost=*/false);
  if (!s_.suspended) s_.asleep = s_.served;
  s_.suspended = true;
  s_.registered = s_.prepared = s_.retried = s_.failed = false;
  s_.epoch = 0;
  s_.served = s_.landed = {};
  s_.state = EngineState::kSuspended;
  s_.user = UserPhase::kOutside;
  Send(protocol::Suspended{});
  Answer(Status::Ok());
}

/// The update at hand makes way for what comes. A call that waits on waits for that.
void InferenceTransition::LeaveBehind(const Status& reason) {
  const bool waits_on = s_.abort && s_.abort_reason.ok();
  BeginAbort(waits_on ? Status::Ok() : reason, /*tell=*/false);
}

void InferenceTransition::BeginAbort(const Status& reason, bool tell) {
  if (s_.step == Step::kNone) return;
  if (!s_.abort || s_.abort_reason.ok() || (s_.undecided && reason.ok())) s_.abort_reason = reason;
  if (!s_.abort_reason.ok()) s_.retried = false;
  s_.abort = true;
  s_.uncertain = s_.undecided = false;
  s_.tell_aborted = s_.tell_aborted || tell;
  // Between Begin and Finish the engine is paused: its call need not wait until the memory is fenced.
  const bool waiting = s_.call == UserCall::kReceive || s_.call == UserCall::kFinish;
  if (waiting && s_.step != Step::kSwitching && !reason.ok() && !s_.abort_told) {
    s_.abort_told = true;
    AnswerError(s_.abort_reason);
  }
  switch (s_.step) {
    case Step::kWriting:
      s_.step = Step::kAborting;
      return Do(RevokeGrants{s_.update});
    case Step::kFencing:  // Being revoked already.
      s_.step = Step::kAborting;
      return;
    case Step::kRequested:
    case Step::kReady:
    case Step::kSwitched:
    case Step::kCommitted:
      return CompleteAbort();
    case Step::kAborting:
      return s_.fenced ? CompleteAbort() : void();
    case Step::kOpening:
    case Step::kVerifying:
    case Step::kSwitching:
    case Step::kNone:
      return;
  }
}

void InferenceTransition::CompleteAbort() {
  if (s_.landing == Landing::kInPlace && s_.touched && s_.lent) {
    // The live tensors are of no version now, and their engine may do with them what it likes.
    s_.landed = {};
    s_.step = Step::kAborting;
    s_.fenced = true;
    if (!std::exchange(s_.reclaiming, true)) Do(ReclaimMemory{});
    return;
  }
  const bool lost = s_.touched;
  const bool told = s_.abort_told;
  const Status reason = s_.abort_reason;
  s_.served = lost ? Version{} : s_.before;
  s_.failed = s_.failed || lost;
  s_.state = s_.served.number >= 0 ? EngineState::kServing
             : s_.failed           ? EngineState::kFailed
                                   : EngineState::kJoining;
  if (!reason.ok()) s_.last_error = reason;
  // Live tensors that are of no version may be mended by the engine in any way.
  if (s_.landing == Landing::kInPlace) s_.landed = s_.served;
  if (s_.tell_aborted && !s_.ended) Send(protocol::Aborted{s_.update, lost, s_.landed});
  Close(lost);
  const bool switched =
      s_.call != UserCall::kWait && (s_.user == UserPhase::kReceived || s_.user == UserPhase::kFinishing);
  // Of a Wait that was cut short nothing is left: the live tensors may not be written outside a call.
  if (s_.user == UserPhase::kReceived || s_.user == UserPhase::kFinishing)
    s_.user = std::exchange(s_.cut_short, false) ? UserPhase::kOutside : UserPhase::kBegun;
  // A later version or attempt comes: the call that waits need not know, unless Receive has returned.
  const bool waits_on = reason.ok() && !GivesUp();
  s_.closed_silently = waits_on && !switched;
  // Who has been told may have come back to finish it or to give it up, and waits for this.
  if ((!told || GivesUp() || s_.call == UserCall::kFinish) && !waits_on) TellAbort(reason);
  if (waits_on && switched)
    TellAbort({Code::kUnavailable, StrCat(protocol::ToString(s_.update),
                                          " was begun again after Receive; call Begin and Receive again")});
  if (const auto next = std::exchange(s_.next, std::nullopt)) Request(*next);
  TellLoss();  // Of a worker that was lost meanwhile: a superseded update has not said it.
}

void InferenceTransition::Close(bool lost) {
  s_.closed = s_.update;
  s_.closed_lost = lost;
  s_.step = Step::kNone;
  s_.update = {};
  s_.version = {};
  s_.part = 0;
  // What the engine is taking over it reads until its next call, whatever became of the update.
  if (s_.handover == Handover::kDue) s_.handover = Handover::kNone;
  s_.before = {};
  s_.touched = s_.commit = s_.abort = s_.fenced = false;
  s_.uncertain = s_.undecided = s_.abort_told = s_.tell_aborted = false;
  s_.abort_reason = Status::Ok();
  s_.bytes = 0;
  s_.seconds = 0;
  s_.compared = 0;
  s_.sources.clear();
}

std::string_view NameOf(Step step) {
  static constexpr std::string_view kNames[] = {"idle",     "requested", "opening", "writing",
                                                "fencing",  "verifying", "ready",   "switching",
                                                "switched", "committed", "aborting"};
  return kNames[static_cast<size_t>(step)];
}

std::vector<InferenceAction> Advance(InferenceState& state, const InferenceEvent& event) {
  InferenceTransition transition(state);
  std::visit(transition, event);
  return transition.Take();
}

Status CheckReadable(const InferenceState& state) {
  if (state.suspended) return {Code::kInvalidArgument, "this rank is suspended; resume it first"};
  if (!state.registered) return {Code::kInvalidArgument, "nothing is registered; call Register first"};
  if (state.user != UserPhase::kOutside && state.user != UserPhase::kFinished)
    return {Code::kInvalidArgument, "an update is under way; call this between Finish (or Abort) and Begin"};
  if (state.served.number < 0)
    return {Code::kUnavailable, "no version is served here: the live tensors are of none; call Wait first"};
  return Status::Ok();
}

Version VersionToLend(const InferenceState& state) {
  return state.shares && !state.reclaiming ? state.landed : Version{};
}

}  // namespace weightcast::worker
