#pragma once

#include "worker/inference_update.h"

namespace weightcast::worker {

/// What the user of an inference rank calls.
class InferenceCalls {
 public:
  InferenceCalls(InferenceTransition& transition, CallAnswers& answers, UpdateAtHand& update)
      : t_(transition), s_(transition.state), answers_(answers), update_(update) {}

  void operator()(const RegisterCalled& registered);
  void operator()(const BeginCalled&);
  void operator()(const ReceiveCalled&);
  void operator()(const CommitCalled&);
  void operator()(const FinishCalled& finish);
  void operator()(const AbortCalled&);
  void operator()(const SuspendCalled&);
  void operator()(const WaitCalled&);
  void operator()(const CallExpired& expired);

 private:
  InferenceTransition& t_;
  InferenceState& s_;
  CallAnswers& answers_;
  UpdateAtHand& update_;
};

}  // namespace weightcast::worker
