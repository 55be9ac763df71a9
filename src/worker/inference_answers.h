#pragma once

#include "worker/inference_machine.h"

namespace weightcast::worker {

/// What the user's call that waits is answered.
class CallAnswers {
 public:
  explicit CallAnswers(InferenceTransition& transition) : t_(transition), s_(transition.state) {}

  void Answer(Status status, Version version = {}, uint32_t part = 0);
  void AnswerError(Status status);
  /// Of a worker without which there will be no update, if the call waits for one.
  void TellLoss();
  /// A call that cannot be made now; true if it was answered so.
  bool RefuseCall();
  /// The answer to a call that waited too long.
  [[nodiscard]] Status TooLate(const CallExpired& expired) const;

 private:
  InferenceTransition& t_;
  InferenceState& s_;
};

}  // namespace weightcast::worker
