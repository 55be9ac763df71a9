#include <array>
#include <string_view>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"
#include "worker/inference_transition.h"

// The machine of an inference rank: what its user calls, and what the calls are answered.
namespace weightcast::worker {

using protocol::EngineState;
using protocol::Landing;

// --- The user -----------------------------------------------------------------------------------------

void InferenceTransition::operator()(const RegisterCalled& registered) {
  if (s_.ended) return Answer(s_.end);
  if (s_.step > Step::kRequested || (s_.user != UserPhase::kOutside && s_.user != UserPhase::kFinished)) {
    return Answer(
        {Code::kInvalidArgument, "an update is under way; register between Finish (or Abort) and Begin"});
  }
  if (s_.lent) {
    return Answer({Code::kUnavailable,
                   "another engine still receives the served version from the registered memory; try again "
                   "after its update"});
  }
  // The plan is void with the old registration, and so is a request of it: Register says so.
  if (s_.step == Step::kRequested) Close(/*lost=*/false);
  s_.registered = true;
  s_.user = UserPhase::kOutside;
  s_.landing = registered.landing;
  s_.parts = registered.parts;
  s_.shares = registered.shares && registered.parts == 1;
  s_.runs_switch = registered.runs_switch || registered.landing == Landing::kShadow;
  s_.retried = false;
  s_.epoch = 0;
  s_.prepared = false;
  if (std::exchange(s_.suspended, false)) {
    s_.loss = Status::Ok();  // Whoever was lost meanwhile was of no plan of this rank's.
    s_.served = std::exchange(s_.asleep, {});
    s_.state = s_.served.number >= 0 ? EngineState::kServing : EngineState::kJoining;
  }
  if (!registered.same_memory) {
    s_.served = {};
    s_.failed = false;
    s_.state = EngineState::kJoining;
  }
  // A spare buffer is a new one.
  s_.landed = s_.landing == Landing::kInPlace ? s_.served : Version{};
  Do(SendRegistration{});
  Answer(Status::Ok());
}

void InferenceTransition::operator()(const BeginCalled&) {
  if (RefuseCall()) return;
  if (s_.user != UserPhase::kOutside && s_.user != UserPhase::kFinished)
    return Answer({Code::kInvalidArgument, "Begin was called already; Finish or Abort first"});
  s_.user = UserPhase::kBegun;
  s_.pending_error = Status::Ok();
  Answer(Status::Ok());
  TryOpen();
}

void InferenceTransition::operator()(const ReceiveCalled&) {
  if (RefuseCall()) return;
  if (s_.user == UserPhase::kOutside || s_.user == UserPhase::kFinished)
    return Answer({Code::kInvalidArgument, "Receive was called without Begin; call Begin first"});
  if (s_.user != UserPhase::kBegun)
    return Answer({Code::kInvalidArgument, "Receive has returned already; Finish or Abort"});
  s_.call = UserCall::kReceive;
  if (s_.handover == Handover::kDue) return HandOver();
  s_.handover = Handover::kNone;
  if (!s_.pending_error.ok()) AnswerError(std::exchange(s_.pending_error, {}));
  TryOpen();
  TrySwitch();
  TellLoss();
}

void InferenceTransition::operator()(const CommitCalled&) {
  if (s_.user == UserPhase::kFinishing || s_.user == UserPhase::kFinished) return Answer(Status::Ok());
  if (s_.user != UserPhase::kReceived || s_.step != Step::kSwitched) return (*this)(FinishCalled{});
  if (RefuseCall()) return;
  if (!s_.pending_error.ok()) return AnswerError(std::exchange(s_.pending_error, {}));
  CommitSwitch();
  Answer(Status::Ok());
}

void InferenceTransition::operator()(const FinishCalled& finish) {
  if (s_.user == UserPhase::kFinished) {
    s_.user = UserPhase::kOutside;
    return Answer(Status::Ok(), s_.served);
  }
  if (RefuseCall()) return;
  if (!finish.commits && s_.user == UserPhase::kReceived && s_.pending_error.ok())
    return Answer({Code::kInvalidArgument, "Served was called without Commit; call Commit first"});
  s_.call = UserCall::kFinish;
  s_.cut_short = false;
  if (!s_.pending_error.ok()) return AnswerError(std::exchange(s_.pending_error, {}));
  // An abort that waits for those who read here answers the call by itself.
  if (s_.user == UserPhase::kReceived) return s_.step == Step::kSwitched ? CommitSwitch() : void();
  if (s_.user != UserPhase::kFinishing)
    AnswerError({Code::kInvalidArgument, "Finish was called without Begin and Receive; call these first"});
}

void InferenceTransition::operator()(const AbortCalled&) {
  s_.pending_error = Status::Ok();
  s_.handover = Handover::kNone;
  s_.call = UserCall::kAbort;
  const bool untouched = s_.landing == Landing::kShadow && !s_.touched;
  if ((s_.step <= Step::kRequested && s_.part == 0) || untouched) {
    // Only the pause ends. The spare buffer goes on being filled, or fenced; a later Receive may take it.
    s_.user = UserPhase::kOutside;
    return Answer(Status::Ok());
  }
  GiveUp({Code::kCancelled, "the engine aborted the update by calling Abort; it takes part in the next one"});
}

void InferenceTransition::operator()(const SuspendCalled&) {
  if (s_.ended) return Answer(s_.end);
  if (s_.user != UserPhase::kOutside && s_.user != UserPhase::kFinished)
    return Answer(
        {Code::kInvalidArgument, "an update is under way; suspend between Finish (or Abort) and Begin"});
  if (s_.lent)
    return Answer({Code::kUnavailable,
                   "another engine still receives the served version from this rank's memory; try again "
                   "after its update"});
  s_.call = UserCall::kSuspend;
  if (s_.step <= Step::kRequested) return Suspend();
  GiveUp({Code::kCancelled, "the engine was suspended during the update; call resume"});
}

void InferenceTransition::operator()(const WaitCalled&) {
  if (RefuseCall()) return;
  if (s_.parts > 1)
    return Answer({Code::kInvalidArgument,
                   "Wait cannot hand on several groups; call Begin, ReceiveGroup for each and Finish"});
  if (s_.user == UserPhase::kBegun || s_.user == UserPhase::kReceived)
    return Answer(
        {Code::kInvalidArgument, "Wait cannot be used between Begin and Finish; call Receive there"});
  s_.call = UserCall::kWait;
  s_.cut_short = false;
  if (s_.user == UserPhase::kFinishing) return;  // One that was cut short; Serve or Abort will end it.
  s_.user = UserPhase::kBegun;
  s_.pending_error = Status::Ok();
  TryOpen();
  TrySwitch();
  TellLoss();
}

void InferenceTransition::operator()(const CallExpired& expired) {
  if (s_.call == UserCall::kNone || s_.step == Step::kSwitching) return;
  const bool away = !expired.away.ok();
  // Nobody will say what became of the grants.
  if (away && s_.uncertain) return BeginAbort(expired.away, /*tell=*/false);
  // Wait lets nobody touch the live tensors after it has returned: once that has begun it sees the update to
  // its end, which the controller's time-outs or the session's end bring about.
  const bool bound = s_.touched || s_.user == UserPhase::kFinishing ||
                     (s_.step == Step::kOpening && s_.landing == Landing::kInPlace);
  if (s_.call == UserCall::kWait && bound && s_.step != Step::kAborting) {
    if (!expired.interrupted && !away) return;
    // Gives the update up; the answer comes when nobody can write any more. Committed bytes are whole
    // already.
    if (s_.step != Step::kCommitted) {
      Fail(away ? expired.away : InterruptedCall("Wait"));
      s_.uncertain = s_.uncertain && !away;
      return;
    }
  }
  // Nobody writes or reads there any more, so the engine need not stay paused for the controller's word or
  // the checksums; it has been told then.
  const bool quiet = (s_.fenced || s_.step == Step::kVerifying) && !s_.lent;
  if (s_.call == UserCall::kAbort && quiet) {
    s_.user = UserPhase::kOutside;
    s_.abort_told = true;
  }
  AnswerError(TooLate(expired));
}

// --- Answers --------------------------------------------------------------------------------------------

void InferenceTransition::Answer(Status status, Version version, uint32_t part) {
  s_.call = UserCall::kNone;
  Do(AnswerCall{.status = std::move(status), .version = std::move(version), .part = part});
}

void InferenceTransition::AnswerError(Status status) {
  if (s_.call == UserCall::kWait && s_.user == UserPhase::kBegun) s_.user = UserPhase::kOutside;
  s_.cut_short = s_.call == UserCall::kWait && s_.user == UserPhase::kFinishing;
  Answer(std::move(status));
}

void InferenceTransition::TellAbort(const Status& reason) {
  if (s_.call == UserCall::kSuspend) return Suspend();
  if (s_.call == UserCall::kAbort) {
    s_.user = UserPhase::kOutside;
    return Answer(Status::Ok());
  }
  if (s_.call == UserCall::kNone && s_.user == UserPhase::kOutside) return;  // Nobody is there to hear it.
  if (!s_.loss.ok()) s_.loss_told = s_.loss_told || s_.loss == reason;
  if (s_.call != UserCall::kNone) return AnswerError(reason);
  s_.pending_error = reason;
}

void InferenceTransition::TellLoss() {
  const bool waiting = s_.call == UserCall::kReceive || s_.call == UserCall::kWait;
  // Within an update Abort will say it, or the update does without the lost one.
  if (!waiting || s_.step != Step::kNone || s_.retried || s_.loss.ok() || s_.loss_told) return;
  s_.loss_told = true;
  AnswerError(s_.loss);
}

bool InferenceTransition::RefuseCall() {
  if (s_.ended) {
    Answer(s_.end);
    return true;
  }
  if (!s_.registered) {
    Answer({Code::kInvalidArgument, s_.suspended ? "this rank is suspended; resume it first"
                                                 : "nothing is registered; call Register first"});
    return true;
  }
  return false;
}

Status InferenceTransition::TooLate(const CallExpired& expired) const {
  std::string what;
  switch (s_.step) {
    case Step::kNone:
    case Step::kRequested:
      what = s_.part > 0 ? "the controller did not begin the next group in time (weightcast info shows the "
                           "state of each worker)"
             : s_.prepared
                 ? "no newer version was published in time"
                 : "the plan was not prepared in time (weightcast info shows the state of each worker)";
      break;
    case Step::kCommitted:
      what =
          "the other ranks of the engine have not all switched in time (weightcast info shows the state of "
          "each worker)";
      break;
    case Step::kReady:
      what = IsLastPart() ? "this rank has every byte, but others are not ready in time (weightcast info "
                            "shows the state of each worker)"
                          : "this rank has the group, but other ranks of its engine have not (weightcast "
                            "info shows the state of each worker)";
      break;
    case Step::kVerifying:
      what = "the checksums were not compared in time";
      break;
    case Step::kAborting:
      if (!s_.fenced)
        what = "a source may still write here (keep the engine paused and call Abort again)";
      else if (s_.lent)
        what = "another engine still reads here (keep the engine paused and call Abort again)";
      else
        what = "the controller has not said in time how the update continues";
      if (!s_.abort_reason.ok()) what += StrCat(" after: ", s_.abort_reason.message());
      break;
    default:
      what = "not every byte arrived in time (weightcast info shows the state of each worker)";
  }
  if (!s_.loss.ok()) what += StrCat("; ", s_.loss.message());
  if (s_.step == Step::kAborting && (!s_.fenced || s_.lent)) return {Code::kFenced, what};
  static constexpr std::array<std::string_view, 6> kAgain = {"",
                                                             "; call Receive again",
                                                             "; call Finish again",
                                                             "; call Wait again",
                                                             "; call Abort again",
                                                             "; call Suspend again"};
  if (expired.interrupted)
    return {Code::kCancelled, StrCat("this call was interrupted by a signal or by the caller: ", what,
                                     kAgain[static_cast<size_t>(s_.call)])};
  if (!expired.away.ok()) return expired.away;
  return {Code::kTimedOut, StrCat(what, kAgain[static_cast<size_t>(s_.call)])};
}

}  // namespace weightcast::worker
