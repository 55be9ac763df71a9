#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "trace/metrics.h"
#include "weightcast/worker.h"
#include "worker/background.h"
#include "worker/inference_machine.h"
#include "worker/landing.h"
#include "worker/peer_source.h"
#include "worker/phase_clock.h"
#include "worker/plan_receiver.h"
#include "worker/session.h"
#include "worker/stall_watch.h"
#include "worker/stopped_writers.h"
#include "worker/waiting.h"

namespace weightcast::worker {

/// What the loop leaves for the user's threads.
struct InferenceOutput {
  // What others may see of the state.
  Version served;
  protocol::EngineState state = protocol::EngineState::kJoining;
  Status last_error;
  bool idle = true;   ///< No update is under way.
  bool lent = false;  ///< Others may be reading the landing memory.
  // What is registered.
  std::shared_ptr<const LandingMemory> memory;
  bool needs_phases = false;  ///< It lands for a loader that is not called: Wait cannot switch.
  uint32_t parts = 1;         ///< Of an update.
  // For calls that wait.
  struct Switch {
    protocol::UpdateId update;
    Version version;
    std::shared_ptr<const LandingMemory> memory;
    std::function<Status(const Version&)> call;  ///< The engine's; may be empty.
  };
  std::optional<Switch> to_switch;
  std::optional<AnswerCall> answer;
  std::optional<std::vector<TensorInfo>> offered;
  Status ended;
};

/// Carries out what the machine of an inference rank says. Called in the session's loop, unless said
/// otherwise. To be destroyed after the loop and the background threads have ended.
class InferenceLoop {
 public:
  struct Registered {
    LandingOptions options;
    std::shared_ptr<LandingMemory> memory;  ///< Null: nothing is.
  };
  /// `model`: of the commit group.
  InferenceLoop(Session& session, Background& background, std::string model);

  void OnMessage(protocol::ControllerMessage message);
  void OnEnded(const Status& status);
  /// InferenceOutput::offered follows, also from a later controller.
  void AskOffered();
  void Dispatch(InferenceEvent event);

  [[nodiscard]] const InferenceState& state() const { return state_; }
  [[nodiscard]] Registered& registered() { return registered_; }
  [[nodiscard]] PlanReceiver& receiver() { return receiver_; }
  [[nodiscard]] StoppedWriters& writers() { return writers_; }
  [[nodiscard]] PeerSource& peer_source() { return peer_source_; }
  /// Any thread.
  [[nodiscard]] Shared<InferenceOutput>& output() { return output_; }

 private:
  std::shared_ptr<LandingMemory> ReplaceSpare(std::shared_ptr<LandingMemory> spare);
  void Show();
  void Measure(Step left);
  void Execute(SendMessage& action) { session_.client().Send(std::move(action.message)); }
  void Execute(const SendRegistration&);
  void Execute(const ReclaimMemory&);
  void Execute(const OpenGrants& action) { receiver_.Open(action); }
  void Execute(const RevokeGrants& action);
  void Execute(const VerifyChecksums& action) { receiver_.Verify(action); }
  void Execute(const RunSwitch& action);
  void Execute(const AnswerCall& action);

  Session& session_;
  const std::string model_;
  InferenceState state_;
  std::deque<InferenceEvent> events_;  ///< Those that came while one was being taken.
  bool feeding_ = false;
  bool asking_ = false;  ///< For what is offered; each controller again.
  Registered registered_;
  PlanReceiver receiver_;
  StoppedWriters writers_;
  PeerSource peer_source_;
  Shared<InferenceOutput> output_;

  TimePoint step_began_;  ///< The machine's present step.
  PhaseClock phases_;
  StallWatch stalls_;
};

}  // namespace weightcast::worker
