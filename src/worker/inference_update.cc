#include "worker/inference_update.h"

#include <utility>

#include "base/strings.h"

namespace weightcast::worker {

using protocol::EngineState;
using protocol::Landing;

void UpdateAtHand::Request(const protocol::GrantRequest& request) {
  if (s_.epoch == 0) return;  // It was sent before our Register came there, which takes it back.
  if (!s_.prepared || request.update.epoch != s_.epoch || request.part != 0) {
    s_.closed = request.update;
    s_.closed_lost = s_.closed_silently = false;
    const Status reason = Error(Code::kProtocol, "the controller asked for group of tensors ", request.part,
                                " by plan ", request.update.epoch, ", but this rank is prepared for ",
                                s_.prepared ? StrCat("group 0 by plan ", s_.epoch) : "no plan",
                                "; use the same weightcast on all hosts");
    return t_.Send(protocol::Failed{.update = request.update, .reason = reason});
  }
  s_.retried = s_.closed_silently = false;
  s_.step = Step::kRequested;
  s_.update = request.update;
  s_.version = request.version;
  s_.before = s_.served;
  TryOpen();
}

/// Every rank of the engine has the part at hand: its memory is granted again when the engine has taken it
/// over.
void UpdateAtHand::NextPart() {
  ++s_.part;
  s_.step = Step::kRequested;
  s_.handover = Handover::kDue;
  if (s_.call == UserCall::kReceive) HandOver();
}

void UpdateAtHand::HandOver() {
  s_.handover = Handover::kWithEngine;
  answers_.Answer(Status::Ok(), s_.version, s_.part - 1);
}

void UpdateAtHand::TryOpen() {
  const bool taken_over = s_.handover == Handover::kNone;
  const bool may = s_.landing == Landing::kShadow || (s_.user == UserPhase::kBegun && taken_over);
  if (s_.step != Step::kRequested || !may) return;
  if (s_.lent) {  // Nobody may read what is being written.
    if (!std::exchange(s_.reclaiming, true)) t_.Add(ReclaimMemory{});
    return;
  }
  s_.step = Step::kOpening;
  s_.landed = {};
  s_.state = EngineState::kUpdating;
  if (s_.landing == Landing::kInPlace) s_.served = {};
  t_.Add(OpenGrants{.update = s_.update, .part = s_.part});
}

void UpdateAtHand::BecomeReady() {
  s_.step = Step::kReady;
  if (s_.IsLastPart()) s_.state = EngineState::kReady;
  if (s_.parts == 1) s_.landed = s_.version;
  t_.Send(protocol::Ready{.update = s_.update,
                          .bytes = s_.bytes,
                          .seconds = s_.seconds,
                          .sources = s_.sources,
                          .part = s_.part,
                          .compared = s_.compared});
}

void UpdateAtHand::TrySwitch() {
  const bool waiting = s_.call == UserCall::kReceive || s_.call == UserCall::kWait;
  if (s_.step != Step::kReady || !s_.commit || !waiting || s_.user != UserPhase::kBegun) return;
  if (!s_.runs_switch) return Switched();
  s_.step = Step::kSwitching;
  s_.touched = true;
  s_.served = {};
  t_.Add(RunSwitch{s_.update});
}

void UpdateAtHand::Switched() {
  s_.step = Step::kSwitched;
  if (s_.call == UserCall::kWait) return CommitSwitch();
  s_.user = UserPhase::kReceived;
  answers_.Answer(Status::Ok(), s_.version, s_.part);
}

void UpdateAtHand::CommitSwitch() {
  s_.step = Step::kCommitted;
  s_.state = EngineState::kCommitted;
  s_.user = UserPhase::kFinishing;
  t_.Send(protocol::Committed{s_.update});
}

/// The call that waits is told nothing until the controller has found another source, or none.
void UpdateAtHand::AskForSource(const Status& reason, int64_t source) {
  t_.Send(protocol::Failed{.update = s_.update, .reason = reason, .source = source});
  s_.abort = s_.uncertain = s_.undecided = true;
  s_.abort_reason = reason;
  s_.step = Step::kAborting;
}

void UpdateAtHand::Fail(const Status& reason) {
  if (!s_.ended) t_.Send(protocol::Failed{.update = s_.update, .reason = reason});
  const bool uncertain = !s_.ended && s_.step == Step::kWriting && s_.touched && s_.before.number >= 0;
  BeginAbort(reason, /*tell=*/false);
  s_.uncertain = uncertain;  // The controller's Abort will say.
}

/// The user's wish: the call is answered when the memory is fenced.
void UpdateAtHand::GiveUp(const Status& reason) {
  if (s_.undecided) {  // Another source would not matter any more.
    s_.undecided = false;
    s_.uncertain = s_.touched && s_.before.number >= 0;
    if (s_.fenced && !s_.uncertain) return CompleteAbort();
  }
  if (s_.step != Step::kAborting) Fail(reason);
}

void UpdateAtHand::Suspend() {
  // The plan is void with the registration, and so is a request of it: Suspended says so.
  if (s_.step == Step::kRequested) Close(/*lost=*/false);
  if (!s_.suspended) s_.asleep = s_.served;
  s_.suspended = true;
  s_.registered = s_.prepared = s_.retried = s_.failed = false;
  s_.epoch = 0;
  s_.served = s_.landed = {};
  s_.state = EngineState::kSuspended;
  s_.user = UserPhase::kOutside;
  t_.Send(protocol::Suspended{});
  answers_.Answer(Status::Ok());
}

/// The update at hand makes way for what comes. A call that waits on waits for that.
void UpdateAtHand::LeaveBehind(const Status& reason) {
  const bool waits_on = s_.abort && s_.abort_reason.ok();
  BeginAbort(waits_on ? Status::Ok() : reason, /*tell=*/false);
}

void UpdateAtHand::BeginAbort(const Status& reason, bool tell) {
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
    answers_.AnswerError(s_.abort_reason);
  }
  switch (s_.step) {
    case Step::kWriting:
      s_.step = Step::kAborting;
      return t_.Add(RevokeGrants{s_.update});
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

void UpdateAtHand::CompleteAbort() {
  if (s_.landing == Landing::kInPlace && s_.touched && s_.lent) {
    // The live tensors are of no version now, and their engine may do with them what it likes.
    s_.landed = {};
    s_.step = Step::kAborting;
    s_.fenced = true;
    if (!std::exchange(s_.reclaiming, true)) t_.Add(ReclaimMemory{});
    return;
  }
  const bool lost = s_.touched;
  const bool told = s_.abort_told;
  const std::string text = StrCat(protocol::ToString(s_.update), " of version ", s_.version.number);
  const Status reason = s_.abort_reason;
  s_.served = lost ? Version{} : s_.before;
  s_.failed = s_.failed || lost;
  s_.state = s_.served.number >= 0 ? EngineState::kServing
             : s_.failed           ? EngineState::kFailed
                                   : EngineState::kJoining;
  if (!reason.ok()) s_.last_error = reason;
  // Live tensors that are of no version may be repaired by the engine in any way.
  if (s_.landing == Landing::kInPlace) s_.landed = s_.served;
  if (s_.tell_aborted && !s_.ended) t_.Send(protocol::Aborted{s_.update, lost, s_.landed});
  Close(lost);
  const bool switched =
      s_.call != UserCall::kWait && (s_.user == UserPhase::kReceived || s_.user == UserPhase::kFinishing);
  // Of a Wait that was cut short nothing is left: the live tensors may not be written outside a call.
  if (s_.user == UserPhase::kReceived || s_.user == UserPhase::kFinishing)
    s_.user = std::exchange(s_.cut_short, false) ? UserPhase::kOutside : UserPhase::kBegun;
  // A later version or attempt comes: the call that waits need not know, unless Receive has returned.
  const bool gives_up = s_.call == UserCall::kAbort || s_.call == UserCall::kSuspend;
  const bool waits_on = reason.ok() && !gives_up;
  s_.closed_silently = waits_on && !switched;
  // Who has been told may have come back to finish it or to give it up, and waits for this.
  if ((!told || gives_up || s_.call == UserCall::kFinish) && !waits_on) TellAbort(reason);
  if (waits_on && switched)
    TellAbort(Error(Code::kUnavailable, text,
                    " was taken back before this rank had finished it, for a newer version or another "
                    "source; receive again, or abort"));
  if (const auto next = std::exchange(s_.next, std::nullopt)) Request(*next);
  answers_.TellLoss();  // Of a worker that was lost meanwhile: a superseded update has not said it.
}

void UpdateAtHand::TellAbort(const Status& reason) {
  if (s_.call == UserCall::kSuspend) return Suspend();
  if (s_.call == UserCall::kAbort) {
    s_.user = UserPhase::kOutside;
    return answers_.Answer(Status::Ok());
  }
  if (s_.call == UserCall::kNone && s_.user == UserPhase::kOutside) return;  // Nobody is there to hear it.
  if (!s_.loss.ok()) s_.loss_told = s_.loss_told || s_.loss == reason;
  if (s_.call != UserCall::kNone) return answers_.AnswerError(reason);
  s_.pending_error = reason;
}

void UpdateAtHand::Close(bool lost) {
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

}  // namespace weightcast::worker
