#include "worker/inference_calls.h"

#include <utility>

#include "base/advice.h"

namespace weightcast::worker {

using protocol::EngineState;
using protocol::Landing;

void InferenceCalls::operator()(const RegisterCalled& registered) {
  if (s_.ended) return answers_.Answer(s_.end);
  if (s_.step > Step::kRequested || (s_.user != UserPhase::kOutside && s_.user != UserPhase::kFinished)) {
    return answers_.Answer({Code::kInvalidArgument,
                            "an update is under way; call register between finish (or abort) and begin"});
  }
  if (s_.lent) {
    return answers_.Answer(
        {Code::kUnavailable,
         "another engine still receives the served version from the registered memory; try again "
         "after its update"});
  }
  // The plan is void with the old registration, and so is a request of it: Register says so.
  if (s_.step == Step::kRequested) update_.Close(/*lost=*/false);
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
    s_.loss = Status::Ok();  // A worker lost meanwhile was of no plan of this rank.
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
  t_.Add(SendRegistration{});
  answers_.Answer(Status::Ok());
}

void InferenceCalls::operator()(const BeginCalled&) {
  if (answers_.RefuseCall()) return;
  if (s_.user != UserPhase::kOutside && s_.user != UserPhase::kFinished)
    return answers_.Answer({Code::kInvalidArgument, "begin was called already; call finish or abort first"});
  s_.user = UserPhase::kBegun;
  s_.pending_error = Status::Ok();
  answers_.Answer(Status::Ok());
  update_.TryOpen();
}

void InferenceCalls::operator()(const ReceiveCalled&) {
  if (answers_.RefuseCall()) return;
  if (s_.user == UserPhase::kOutside || s_.user == UserPhase::kFinished)
    return answers_.Answer({Code::kInvalidArgument, "receive was called without begin; call begin first"});
  if (s_.user != UserPhase::kBegun)
    return answers_.Answer(
        {Code::kInvalidArgument, "receive has returned for this update already; call finish or abort"});
  s_.call = UserCall::kReceive;
  if (s_.handover == Handover::kDue) return update_.HandOver();
  s_.handover = Handover::kNone;
  if (!s_.pending_error.ok()) answers_.AnswerError(std::exchange(s_.pending_error, {}));
  update_.TryOpen();
  update_.TrySwitch();
  answers_.TellLoss();
}

void InferenceCalls::operator()(const CommitCalled&) {
  if (s_.user == UserPhase::kFinishing || s_.user == UserPhase::kFinished)
    return answers_.Answer(Status::Ok());
  if (s_.user != UserPhase::kReceived || s_.step != Step::kSwitched) return (*this)(FinishCalled{});
  if (answers_.RefuseCall()) return;
  if (!s_.pending_error.ok()) return answers_.AnswerError(std::exchange(s_.pending_error, {}));
  update_.CommitSwitch();
  answers_.Answer(Status::Ok());
}

void InferenceCalls::operator()(const FinishCalled& finish) {
  if (s_.user == UserPhase::kFinished) {
    s_.user = UserPhase::kOutside;
    return answers_.Answer(Status::Ok(), s_.served);
  }
  if (answers_.RefuseCall()) return;
  if (!finish.commits && s_.user == UserPhase::kReceived && s_.pending_error.ok())
    return answers_.Answer({Code::kInvalidArgument, "served was called without commit; call commit first"});
  s_.call = UserCall::kFinish;
  s_.cut_short = false;
  if (!s_.pending_error.ok()) return answers_.AnswerError(std::exchange(s_.pending_error, {}));
  // An abort that waits for those who read here answers the call by itself.
  if (s_.user == UserPhase::kReceived) return s_.step == Step::kSwitched ? update_.CommitSwitch() : void();
  if (s_.user != UserPhase::kFinishing)
    answers_.AnswerError({Code::kInvalidArgument,
                          "finish was called without begin and receive; call begin and receive first"});
}

void InferenceCalls::operator()(const AbortCalled&) {
  s_.pending_error = Status::Ok();
  s_.handover = Handover::kNone;
  s_.call = UserCall::kAbort;
  const bool untouched = s_.landing == Landing::kShadow && !s_.touched;
  if ((s_.step <= Step::kRequested && s_.part == 0) || untouched) {
    // Only the pause ends. The spare buffer goes on being filled, or fenced; a later Receive may take it.
    s_.user = UserPhase::kOutside;
    return answers_.Answer(Status::Ok());
  }
  update_.GiveUp({Code::kCancelled,
                  "the engine aborted the update by calling abort; the engine takes part in the next one"});
}

void InferenceCalls::operator()(const SuspendCalled&) {
  if (s_.ended) return answers_.Answer(s_.end);
  if (s_.user != UserPhase::kOutside && s_.user != UserPhase::kFinished)
    return answers_.Answer(
        {Code::kInvalidArgument, "an update is under way; call suspend between finish (or abort) and begin"});
  if (s_.lent)
    return answers_.Answer(
        {Code::kUnavailable,
         "another engine still receives the served version from this rank's memory; try again "
         "after its update"});
  s_.call = UserCall::kSuspend;
  if (s_.step <= Step::kRequested) return update_.Suspend();
  update_.GiveUp(
      {Code::kCancelled, "the engine was suspended during the update; it takes part again when resumed"});
}

void InferenceCalls::operator()(const WaitCalled&) {
  if (answers_.RefuseCall()) return;
  if (s_.parts > 1)
    return answers_.Answer(Error(Code::kInvalidArgument, "wait cannot receive in ", s_.parts,
                                 " groups of tensors; call begin, receive_group for each group, and finish"));
  if (s_.user == UserPhase::kBegun || s_.user == UserPhase::kReceived)
    return answers_.Answer(
        {Code::kInvalidArgument, "wait cannot be used between begin and finish; call receive there"});
  s_.call = UserCall::kWait;
  s_.cut_short = false;
  if (s_.user == UserPhase::kFinishing) return;  // One that was cut short; Serve or Abort will end it.
  s_.user = UserPhase::kBegun;
  s_.pending_error = Status::Ok();
  update_.TryOpen();
  update_.TrySwitch();
  answers_.TellLoss();
}

void InferenceCalls::operator()(const CallExpired& expired) {
  if (s_.call == UserCall::kNone || s_.step == Step::kSwitching) return;
  const bool away = !expired.away.ok();
  // Nobody will say what became of the grants.
  if (away && s_.uncertain) return update_.BeginAbort(expired.away, /*tell=*/false);
  // Wait lets nobody touch the live tensors after it has returned: once that has begun it sees the update to
  // its end, which the controller's time-outs or the session's end bring about.
  const bool bound = s_.touched || s_.user == UserPhase::kFinishing ||
                     (s_.step == Step::kOpening && s_.landing == Landing::kInPlace);
  if (s_.call == UserCall::kWait && bound && s_.step != Step::kAborting) {
    if (!expired.interrupted && !away) return;
    // Gives the update up; the answer comes when nobody can write any more. Committed bytes are whole
    // already.
    if (s_.step != Step::kCommitted) {
      update_.Fail(away ? expired.away : InterruptedCall("wait"));
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
  answers_.AnswerError(answers_.TooLate(expired));
}

}  // namespace weightcast::worker
