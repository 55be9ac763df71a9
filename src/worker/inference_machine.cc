#include "worker/inference_machine.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "worker/inference_calls.h"

namespace weightcast::worker {

using protocol::EngineState;
using protocol::Landing;

namespace {

/// What does not come from the user.
class InferenceEvents {
 public:
  InferenceEvents(InferenceTransition& transition, CallAnswers& answers, UpdateAtHand& update)
      : t_(transition), s_(transition.state), answers_(answers), update_(update) {}

  // --- The controller's messages ----------------------------------------------------------------------

  void operator()(const protocol::Welcome& welcome) {
    if (s_.ended || welcome.term < s_.term) return;
    // A new session: the controller knows no more of an update that was under way.
    update_.BeginAbort(
        Error(Code::kUnavailable, "the controller began a new session, which ends ",
              protocol::ToString(s_.update), "; it offers the version again: receive that, or abort"),
        /*tell=*/false);
    s_.next.reset();
    s_.retried = s_.closed_silently = false;
    s_.term = welcome.term;
    s_.epoch = 0;
    s_.prepared = false;
    if (s_.suspended) return t_.Send(protocol::Suspended{});
    t_.Add(SendRegistration{});
  }

  void operator()(const protocol::Controlled&) { s_.controlled = true; }

  void operator()(const PlanArrived& plan) {
    if (s_.suspended) return;  // It was sent before Suspended came there.
    // Everything of older epochs is void, but for what has wholly come: others of the engine may get theirs
    // again.
    if (s_.step != Step::kReady || s_.abort || !s_.IsLastPart())
      update_.LeaveBehind(Error(Code::kUnavailable, "the plan changed during ", protocol::ToString(s_.update),
                                ", which ends it on this rank; receive the next one, or abort"));
    s_.next.reset();
    s_.epoch = plan.epoch;
    s_.prepared = false;
    s_.loss = Status::Ok();
    s_.loss_told = false;
  }

  void operator()(const protocol::GrantRequest& request) {
    if (s_.ended || request.update.term != s_.term || request.update <= s_.closed) return;
    if (s_.step == Step::kNone) return update_.Request(request);
    if (request.update == s_.update && request.part == s_.part + 1 && s_.step == Step::kReady && !s_.abort)
      return update_.NextPart();
    if (request.update <= s_.update) return;
    // The controller has left the update at hand; this one begins when that one's memory is fenced.
    s_.next = request;
    update_.LeaveBehind(Error(Code::kCancelled, protocol::ToString(s_.update),
                              " was ended for a later update; receive that one"));
  }

  void operator()(const protocol::Commit& commit) {
    if (!s_.IsCurrent(commit.update, Step::kReady) || !s_.IsLastPart()) return;
    s_.commit = true;
    update_.TrySwitch();
  }

  void operator()(const protocol::Serve& serve) {
    if (!s_.IsCurrent(serve.update, Step::kCommitted)) return;
    s_.served = s_.version;
    s_.newest = protocol::LaterOf(s_.newest, s_.served);
    s_.state = EngineState::kServing;
    s_.failed = false;
    s_.last_error = Status::Ok();
    update_.Close(/*lost=*/false);
    t_.Send(protocol::Serving{serve.update, s_.served});
    const bool waiting = s_.call != UserCall::kNone;
    s_.cut_short = false;
    s_.user = waiting ? UserPhase::kOutside : UserPhase::kFinished;
    if (waiting) answers_.Answer(Status::Ok(), s_.served);
  }

  void operator()(const protocol::Abort& abort) {
    if (abort.update.term != s_.term) return;
    if (s_.next && s_.next->update == abort.update) {
      s_.next.reset();
      t_.Send(protocol::Aborted{abort.update, false, s_.landed});
      return abort.reason.ok() ? void() : update_.BeginAbort(abort.reason, /*tell=*/false);
    }
    if (s_.step != Step::kNone && s_.update == abort.update) {
      // No source knows the grants: nobody has written.
      if (!abort.started && (s_.step <= Step::kReady || s_.step == Step::kAborting)) s_.touched = false;
      s_.retried = abort.reason.ok() && abort.started;
      return update_.BeginAbort(abort.reason, /*tell=*/true);
    }
    const bool newest = abort.update == s_.closed;
    t_.Send(protocol::Aborted{abort.update, newest && s_.closed_lost, s_.landed});
    if (!newest || !s_.closed_silently || abort.reason.ok() || s_.step != Step::kNone) return;
    // There was no other source after all.
    s_.retried = s_.closed_silently = false;
    s_.last_error = abort.reason;
    update_.TellAbort(abort.reason);
  }

  void operator()(const protocol::Lost& lost) {
    const bool needed = lost.name.role == protocol::Role::kTrainer || lost.name.engine == s_.self.engine;
    if (!needed || s_.ended) return;
    s_.last_error = lost.reason;
    s_.loss = lost.reason;
    s_.loss_told = false;
    answers_.TellLoss();
  }

  void operator()(const SessionEnded& ended) {
    if (s_.ended) return;
    s_.ended = true;
    s_.end = ended.reason;
    s_.last_error = ended.reason;
    s_.next.reset();
    if (std::exchange(s_.abort_told, false)) s_.abort_reason = ended.reason;  // To the call that came since.
    if (s_.step != Step::kNone) return update_.BeginAbort(ended.reason, /*tell=*/false);
    if (s_.call != UserCall::kNone) answers_.AnswerError(ended.reason);
  }

  // --- The data plane -----------------------------------------------------------------------------------

  void operator()(const PlanReady& ready) {
    if (ready.epoch != s_.epoch || s_.ended) return;
    s_.prepared = true;
    t_.Send(protocol::Prepared{.epoch = s_.epoch, .connections = ready.connections});
  }

  void operator()(const PlanFailed& failed) {
    if (failed.epoch != s_.epoch || s_.ended) return;
    s_.last_error = failed.reason;
    t_.Send(protocol::Failed{.update = {.term = s_.term, .epoch = s_.epoch}, .reason = failed.reason});
  }

  void operator()(const GrantsOpened& opened) {
    if (!s_.IsCurrent(opened.update, Step::kOpening)) return;
    if (s_.abort) {  // Nobody was told their names.
      s_.step = Step::kAborting;
      return t_.Add(RevokeGrants{opened.update});
    }
    s_.touched = s_.landing == Landing::kInPlace;
    s_.step = Step::kWriting;
    t_.Send(protocol::Granted{
        .update = opened.update, .grants = opened.grants, .part = s_.part, .compares = s_.compares});
  }

  void operator()(const OpenFailed& failed) {
    if (!s_.IsCurrent(failed.update, Step::kOpening)) return;
    s_.step = Step::kRequested;
    if (s_.abort) return update_.CompleteAbort();
    if (failed.source < 0) return update_.Fail(failed.reason);
    update_.AskForSource(failed.reason, failed.source);
    s_.fenced = true;
  }

  void operator()(const Arrived& arrived) {
    if (!s_.IsCurrent(arrived.update, Step::kWriting)) return;
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
    t_.Add(RevokeGrants{arrived.update});
  }

  void operator()(const SourceLost& lost) {
    if (!s_.IsCurrent(lost.update, Step::kWriting)) return;
    update_.AskForSource(lost.reason, lost.source);
    t_.Add(RevokeGrants{s_.update});
  }

  void operator()(const GrantsFenced& fenced) {
    if (s_.IsCurrent(fenced.update, Step::kAborting)) {
      s_.fenced = true;
      return s_.uncertain ? void() : update_.CompleteAbort();
    }
    if (!s_.IsCurrent(fenced.update, Step::kFencing)) return;
    if (!s_.verify) return update_.BecomeReady();
    s_.step = Step::kVerifying;
    t_.Add(VerifyChecksums{fenced.update});
  }

  void operator()(const SpareSetAside& aside) {
    if (!s_.IsCurrent(aside.update, Step::kAborting) || s_.fenced || s_.landing != Landing::kShadow) return;
    // The plan is void with the old buffer, and so is a request of it: Register says so.
    s_.epoch = 0;
    s_.prepared = false;
    if (s_.call != UserCall::kSuspend && !s_.ended) t_.Add(SendRegistration{});
    s_.fenced = true;
    if (!s_.uncertain) update_.CompleteAbort();
  }

  void operator()(const Verified& verified) {
    if (!s_.IsCurrent(verified.update, Step::kVerifying)) return;
    if (s_.abort) return update_.CompleteAbort();
    s_.compared += verified.compared;
    if (verified.status.ok()) return update_.BecomeReady();
    s_.step = Step::kReady;  // As far as the memory goes: nobody touches it.
    update_.Fail(verified.status);
  }

  void operator()(const SwitchRun& run) {
    if (!s_.IsCurrent(run.update, Step::kSwitching)) return;
    if (!run.status.ok()) s_.touched = s_.landing == Landing::kInPlace || run.changed;
    if (s_.abort) return update_.CompleteAbort();
    if (run.status.ok()) return update_.Switched();
    s_.step = Step::kReady;  // As far as the memory goes: nobody touches it.
    update_.Fail(run.status);
  }

  void operator()(const MemoryFree&) {
    s_.lent = s_.reclaiming = false;
    if (s_.step == Step::kAborting && s_.fenced && !s_.uncertain) return update_.CompleteAbort();
    update_.TryOpen();
  }
  void operator()(const MemoryLent&) { s_.lent = true; }

 private:
  InferenceTransition& t_;
  InferenceState& s_;
  CallAnswers& answers_;
  UpdateAtHand& update_;
};

struct AllEvents : InferenceEvents, InferenceCalls {
  using InferenceCalls::operator();
  using InferenceEvents::operator();
};

}  // namespace

std::string_view NameOf(Step step) {
  static constexpr std::string_view kNames[] = {"idle",     "requested", "opening", "writing",
                                                "fencing",  "verifying", "ready",   "switching",
                                                "switched", "committed", "aborting"};
  return kNames[static_cast<size_t>(step)];
}

std::vector<InferenceAction> Advance(InferenceState& state, const InferenceEvent& event) {
  InferenceTransition transition{state};
  CallAnswers answers(transition);
  UpdateAtHand update(transition, answers);
  std::visit(
      AllEvents{InferenceEvents(transition, answers, update), InferenceCalls(transition, answers, update)},
      event);
  return std::move(transition.actions);
}

Status CheckReadable(const InferenceState& state) {
  if (state.suspended) return {Code::kInvalidArgument, "this rank is suspended; call resume first"};
  if (!state.registered) return {Code::kInvalidArgument, "nothing is registered; call register first"};
  if (state.user != UserPhase::kOutside && state.user != UserPhase::kFinished)
    return {Code::kInvalidArgument, "an update is under way; call digest after finish or abort"};
  if (state.served.number < 0)
    return {Code::kUnavailable,
            "this rank serves no version: the live tensors may be a mixture of versions; receive one first"};
  return Status::Ok();
}

Version VersionToLend(const InferenceState& state) {
  return state.shares && !state.reclaiming ? state.landed : Version{};
}

}  // namespace weightcast::worker
