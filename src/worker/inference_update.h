#pragma once

#include "worker/inference_answers.h"
#include "worker/inference_machine.h"

namespace weightcast::worker {

/// The update at hand, from the controller's request for grants to its end.
class UpdateAtHand {
 public:
  UpdateAtHand(InferenceTransition& transition, CallAnswers& answers)
      : t_(transition), s_(transition.state), answers_(answers) {}

  void Request(const protocol::GrantRequest& request);
  void NextPart();
  void HandOver();
  void TryOpen();
  void BecomeReady();
  void TrySwitch();
  void Switched();
  void CommitSwitch();

  void Fail(const Status& reason);
  void GiveUp(const Status& reason);
  void Suspend();
  void AskForSource(const Status& reason, int64_t source);
  void LeaveBehind(const Status& reason);
  void BeginAbort(const Status& reason, bool tell);
  void CompleteAbort();
  void TellAbort(const Status& reason);
  void Close(bool lost);

 private:
  InferenceTransition& t_;
  InferenceState& s_;
  CallAnswers& answers_;
};

}  // namespace weightcast::worker
