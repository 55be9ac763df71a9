#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "protocol/messages.h"
#include "trace/metrics.h"
#include "weightcast/clock.h"
#include "weightcast/endpoint.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"
#include "worker/machine_actions.h"
#include "worker/send_plan.h"
#include "worker/staging.h"
#include "worker/stream_gate.h"

namespace weightcast::worker {

struct SendJob;

/// Sends updates: takes transfers of all destinations in turn, so that no receiver is the hot spot, stages
/// what must be, and keeps a few of each destination in flight. A few threads of its own (`wc-send`), and one
/// that sees to the ends (`wc-send-end`).
/// Thread safe; never blocks the caller.
class Sender {
 public:
  /// Called from its own threads; must not block. For each Start SendEnded comes when the outcome is known
  /// (not after Stop), then SendFenced when nobody reads the sources any more.
  struct Callbacks {
    std::function<void(const SendEnded&)> on_ended;
    std::function<void(const SendFenced&)> on_fenced;
    /// The digests of what was sent, where Start has asked for them; before SendEnded of a part that went
    /// well.
    std::function<void(protocol::SentDigests)> on_digests{};
  };
  /// Uses the settings staging, timeout, checksum. The endpoint must outlive it. kExhausted where the system
  /// gives no threads.
  static Result<std::unique_ptr<Sender>> Create(Endpoint& endpoint, const Settings& settings,
                                                Callbacks callbacks);
  /// Stops everything and waits until it is fenced, at most the settings' lease twice.
  ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  /// Sends what `start` names. `target`: index into plan->targets. `gate`: nothing is read before it is open;
  /// call Look when it may be.
  void Start(std::shared_ptr<const SendPlan> plan, size_t target, const StartOrder& start,
             std::shared_ptr<const StreamGate> gate = nullptr);
  /// A gate may have opened.
  void Look();
  /// Every part. Harmless for what has ended or was never started.
  void Stop(const protocol::UpdateId& update, uint32_t destination);

  /// kInvalidArgument, naming a tensor, if the plan stages more at once than the setting staging allows.
  Status CheckStaging(const SendPlan& plan) const;
  [[nodiscard]] uint64_t peak_staging() const { return staging_.peak_bytes(); }

 private:
  using Job = SendJob;
  struct Pick;

  Sender(Endpoint& endpoint, const Settings& settings, Callbacks callbacks);
  Status StartThreads();

  Status MakeDigests(Job& job);
  void Work();
  std::optional<Pick> TakeNext();
  Status MakeTransfer(Pick& pick, std::vector<Piece>& pieces);
  void Send(Pick pick);
  /// How far a transfer came before it ended.
  enum class Reached { kNothing, kConnection, kFlight };
  void EndTransfer(const std::shared_ptr<Job>& job, uint32_t transfer, const Status& status, Reached reached);
  void WorkOnEnds();
  bool EndJob(const std::shared_ptr<Job>& job, std::unique_lock<std::mutex>& lock);
  bool WaitForFences(Job& job, std::unique_lock<std::mutex>& lock);

  const Settings settings_;
  const Callbacks callbacks_;
  trace::Counter& bytes_ = trace::CounterNamed("sender.bytes");
  trace::Timing& stage_ = trace::TimingNamed("sender.stage");
  StagingPool staging_;

  std::mutex mutex_;
  std::condition_variable more_;            ///< To send.
  std::condition_variable ends_;            ///< Something has ended or was stopped.
  std::vector<std::shared_ptr<Job>> jobs_;  ///< Not yet fenced.
  size_t turn_ = 0;                         ///< Whose turn it is.
  bool stopping_ = false;
  TimePoint give_up_;  ///< Of fences, once stopping.
  std::vector<std::thread> threads_;
};

}  // namespace weightcast::worker
