#pragma once

#include <functional>
#include <memory>
#include <variant>

#include "protocol/messages.h"
#include "weightcast/status.h"
#include "worker/background.h"
#include "worker/machine_actions.h"
#include "worker/preparation.h"
#include "worker/send_plan.h"
#include "worker/send_report.h"
#include "worker/sender.h"
#include "worker/session.h"

namespace weightcast::worker {

/// Sends by the plan at hand, for the machine of a trainer or of a peer source. All is called in the
/// session's loop, and so are its callbacks, unless said otherwise. To be destroyed after the loop and the
/// background threads have ended.
class PlanSender {
 public:
  using Event = std::variant<SendPlanReady, SendPlanFailed, SendEnded, SendFenced>;
  struct Callbacks {
    std::function<void(protocol::WorkerMessage)> send;  ///< Any thread.
    std::function<void(Event)> feed;                    ///< The machine.
  };
  PlanSender(Session& session, Background& background, Callbacks callbacks)
      : session_(session),
        background_(background),
        callbacks_(std::move(callbacks)),
        report_(session.loop()) {}

  /// Makes the threads that send, once; otherwise the first plan does. Before the loop's first task, too.
  Status Start();
  /// `memory` is called on another thread. SendPlanReady or SendPlanFailed follows, unless the plan is void
  /// before.
  void OnPlan(protocol::Plan plan, Preparation::MakeMemory memory);
  void OnLanding(protocol::PeerLanding landing);
  /// The plan is void, and with it the hold on the memory.
  void DropPlan();
  /// `gate`: nothing is read before it is open.
  void Begin(const StartOrder& start, std::shared_ptr<const StreamGate> gate = nullptr);
  void Stop(const StopSending& action);
  /// A gate may have opened.
  void Look();
  /// The destructor of what it returns, to be called outside of the loop, waits, bounded, until nobody reads
  /// the memory; null if it never started. Nothing is sent from now on.
  std::unique_ptr<Sender> End();

  /// Null before SendPlanReady.
  [[nodiscard]] const SendPlan* plan() const { return plan_.get(); }
  [[nodiscard]] SendReport& report() { return report_; }

 private:
  void Prepare();
  void OnPrepared(const std::shared_ptr<Preparation>& preparation,
                  const Result<std::shared_ptr<const SendPlan>>& plan);

  Session& session_;
  Background& background_;
  const Callbacks callbacks_;
  SendReport report_;
  std::shared_ptr<Preparation> preparation_;
  std::shared_ptr<const SendPlan> plan_;
  std::unique_ptr<Sender> sender_;
  bool ended_ = false;
};

}  // namespace weightcast::worker
