#pragma once

#include <utility>
#include <vector>

#include "worker/inference_machine.h"

namespace weightcast::worker {

/// One transition of an inference rank's machine: changes the state and collects what is to be done.
class InferenceTransition {
 public:
  explicit InferenceTransition(InferenceState& state) : s_(state) {}
  std::vector<InferenceAction> Take() { return std::move(actions_); }

  // The controller's messages.
  void operator()(const protocol::Welcome& welcome);
  void operator()(const PlanArrived& plan);
  void operator()(const protocol::Controlled& controlled);
  void operator()(const protocol::GrantRequest& request);
  void operator()(const protocol::Commit& commit);
  void operator()(const protocol::Serve& serve);
  void operator()(const protocol::Abort& abort);
  void operator()(const protocol::Lost& lost);
  void operator()(const SessionEnded& ended);
  // The data plane.
  void operator()(const PlanReady& ready);
  void operator()(const PlanFailed& failed);
  void operator()(const GrantsOpened& opened);
  void operator()(const OpenFailed& failed);
  void operator()(const Arrived& arrived);
  void operator()(const SourceLost& lost);
  void operator()(const GrantsFenced& fenced);
  void operator()(const SpareSetAside& aside);
  void operator()(const Verified& verified);
  void operator()(const SwitchRun& run);
  void operator()(const MemoryLent&) { s_.lent = true; }
  void operator()(const MemoryFree&);
  // The user.
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
  void Do(InferenceAction action) { actions_.push_back(std::move(action)); }
  void Send(protocol::WorkerMessage message) { Do(SendMessage{std::move(message)}); }
  [[nodiscard]] bool IsCurrent(const protocol::UpdateId& update, Step step) const {
    return s_.step == step && s_.update == update;
  }

  void Request(const protocol::GrantRequest& request);
  void NextPart();
  void HandOver();
  /// No part of the update at hand is left to be asked for.
  [[nodiscard]] bool IsLastPart() const { return s_.part + 1 == s_.parts; }
  void TryOpen();
  void BecomeReady();
  void TrySwitch();
  void Switched();
  void CommitSwitch();
  void Fail(const Status& reason);
  void GiveUp(const Status& reason);
  void Suspend();
  /// Whether the user's call is one that ends the update here.
  [[nodiscard]] bool GivesUp() const { return s_.call == UserCall::kAbort || s_.call == UserCall::kSuspend; }
  void AskForSource(const Status& reason, int64_t source);
  void LeaveBehind(const Status& reason);
  void BeginAbort(const Status& reason, bool tell);
  void CompleteAbort();
  void Close(bool lost);

  void Answer(Status status, Version version = {}, uint32_t part = 0);
  void AnswerError(Status status);
  void TellAbort(const Status& reason);
  void TellLoss();
  bool RefuseCall();
  [[nodiscard]] Status TooLate(const CallExpired& expired) const;

  InferenceState& s_;
  std::vector<InferenceAction> actions_;
};

}  // namespace weightcast::worker
