#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weightcast/worker.h"
#include "worker/background.h"
#include "worker/commit_group.h"
#include "worker/inference_machine.h"
#include "worker/landing.h"
#include "worker/peer_source.h"
#include "worker/phase_clock.h"
#include "worker/quarantine.h"
#include "worker/receiver.h"
#include "worker/session.h"
#include "worker/stall_watch.h"
#include "worker/waiting.h"

namespace weightcast::worker {

/// Carries out what the machine of an inference rank says. Its state belongs to the session's loop; a call of
/// the user is a task there, and the user's thread waits for its answer (and runs the switch).
class InferenceWorker final : public Inference {
 public:
  ~InferenceWorker() override { Close(); }
  Status Open(WorkerOptions options);

  Result<std::vector<TensorInfo>> Offered(TimePoint deadline) override;
  Status Register(Registration registration, LandingOptions options) override;
  Result<Version> Wait(Version newer_than, TimePoint deadline) override;
  Status Begin() override;
  Result<Version> Receive(TimePoint deadline) override;
  Result<ReceivedGroup> ReceiveGroup(TimePoint deadline) override;
  Status Commit() override;
  Status Served(TimePoint deadline) override;
  Status Finish(TimePoint deadline) override;
  Status Abort() override;
  Status Suspend(TimePoint deadline) override;
  Status Resume(Contents contents) override;
  Result<Digests> Digest() override;
  Version version() const override;
  EngineState state() const override;
  Status last_error() const override;
  std::vector<std::string> Describe() const override;
  std::vector<std::string> ConnectionMap() const override;
  void Close() override;

 private:
  /// What others may see of the state, and the call that waits.
  struct Shared {
    Version served;
    protocol::EngineState state = protocol::EngineState::kJoining;
    Status last_error;
    bool idle = true;   ///< No update is under way.
    bool lent = false;  ///< Others may be reading the landing memory.
    std::optional<AnswerCall> answer;
    struct Switch {
      protocol::UpdateId update;
      Version version;
      std::shared_ptr<const LandingMemory> memory;
      std::function<Status(const Version&)> call;  ///< The engine's; may be empty.
    };
    std::optional<Switch> to_switch;
    std::shared_ptr<const LandingMemory> memory;  ///< For Describe.
    bool needs_phases = false;  ///< It lands for a loader that is not called: Wait cannot switch.
    uint32_t parts = 1;         ///< Of an update.
    std::optional<std::vector<TensorInfo>> offered;
    Status ended;
  };

  /// What a rank that sleeps will register again.
  struct Asleep {
    std::vector<Shard> shards;
    LandingOptions options;
    std::shared_ptr<LandingMemory> memory;  ///< Until nobody can write there any more.
  };

  // The user's threads.
  Interrupted interrupted_;
  const OwnProcess process_;
  Status CheckCall(const std::unique_lock<std::mutex>& call) const;
  AnswerCall Call(const InferenceEvent& event, TimePoint deadline);
  Status WithLostDevice(Status status);
  AnswerCall CallLocked(const std::function<void()>& task, TimePoint deadline);
  AnswerCall WaitForAnswer(TimePoint deadline);
  void Reclaim(std::string_view why);
  Status RegisterLocked(std::vector<Shard> shards, LandingOptions options, Contents contents);
  [[nodiscard]] Status CheckGrouped(const LandingOptions& options) const;
  [[nodiscard]] SwitchRun Switch(const Shared::Switch& task) const;
  void Shut();

  // The loop.
  void OnMessage(protocol::ControllerMessage message);
  void OnOffered(protocol::Offered offered);
  void OnPlan(protocol::Plan plan);
  void OnTable(uint32_t epoch, const Result<std::shared_ptr<const ReceivePlan>>& plan);
  void OnConnected();
  void OnDisconnected(const Identity& peer, const Status& status);
  void OnSessionEnded(const Status& status);
  void WatchFence(const protocol::UpdateId& update, const std::shared_ptr<GrantSet>& grants, TimePoint tell);
  void OnFenceLate(const protocol::UpdateId& update, const std::shared_ptr<GrantSet>& grants, TimePoint tell);
  [[nodiscard]] bool IsHeld(const protocol::UpdateId& update) const;
  Status SetAside(const protocol::UpdateId& update, std::string writers);
  void OnSpareMade(const protocol::UpdateId& update, const std::string& writers,
                   Result<std::shared_ptr<LandingMemory>> made);
  void WatchQuarantine();
  void Feed(InferenceEvent event);
  void Show();
  void Measure(Step left);
  void TellSpans();
  void Collect(std::vector<trace::Metric>& metrics) const;
  void Carry(SendMessage& action) { session_->client().Send(std::move(action.message)); }
  void Carry(const SendRegistration&);
  void Carry(const ReclaimMemory&);
  void Carry(const OpenGrants& action);
  void Carry(const RevokeGrants& action);
  void Carry(const VerifyChecksums& action);
  void Carry(const RunSwitch& action);
  void Carry(const AnswerCall& action);

  std::mutex asks_;   ///< Held during Offered.
  std::mutex calls_;  ///< Held during a call of the user.
  bool closed_ = false;
  std::optional<Asleep> asleep_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Shared shared_;

  // The loop's.
  InferenceState state_;
  std::deque<InferenceEvent> events_;  ///< Those that came while one was being taken.
  bool feeding_ = false;
  bool asking_ = false;     ///< For Offered; each controller anew.
  LandingOptions options_;  ///< Of memory_.
  std::shared_ptr<LandingMemory> memory_;
  std::shared_ptr<const ReceivePlan> plan_;
  std::vector<std::string> accepted_;  ///< Per source of the plan its connection; empty: not there yet.
  std::shared_ptr<GrantSet> grants_;
  Quarantine quarantine_;
  bool making_spare_ = false;
  Status spare_error_;  ///< Why the last try to make one failed.

  TimePoint step_began_;  ///< The machine's present step.
  PhaseClock phases_;
  std::unique_ptr<StallWatch> stalls_;

  CommitGroup group_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<trace::Collector> collector_;
  std::unique_ptr<PeerSource> peer_source_;
  Background background_{"wc-prepare"};
};

}  // namespace weightcast::worker
