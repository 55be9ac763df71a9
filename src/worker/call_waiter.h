#pragma once

#include <functional>
#include <mutex>

#include "weightcast/status.h"
#include "worker/inference_loop.h"
#include "worker/session.h"
#include "worker/waiting.h"

namespace weightcast::worker {

/// The calls of an inference rank's user, one at a time: each is a task of the loop, for whose answer the
/// user's thread waits (and runs the switch).
class CallWaiter {
 public:
  using Lock = std::unique_lock<std::mutex>;
  CallWaiter(Session& session, InferenceLoop& loop, Interrupted interrupted)
      : session_(session), loop_(loop), interrupted_(std::move(interrupted)) {}

  /// Held during a call. Errors: another thread is inside one, all is closed, this is a forked child.
  Result<Lock> Enter();
  /// Under the lock: runs `task` in the loop, which feeds the machine a call, and waits for the answer.
  AnswerCall Run(const std::function<void()>& task, TimePoint deadline);
  /// Both.
  AnswerCall Call(const InferenceEvent& event, TimePoint deadline);
  /// Waits for the call at hand; no other comes. Not held if it was closed before.
  Lock Close();

 private:
  Status WithLostDevice(Status status);
  [[nodiscard]] SwitchRun Switch(const InferenceOutput::Switch& task) const;

  Session& session_;
  InferenceLoop& loop_;
  const Interrupted interrupted_;
  const OwnProcess process_;
  std::mutex mutex_;
  bool closed_ = false;
};

}  // namespace weightcast::worker
