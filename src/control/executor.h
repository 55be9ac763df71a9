#pragma once

#include <atomic>
#include <set>
#include <span>
#include <tuple>

#include "base/task_thread.h"
#include "control/controller_machine.h"
#include "control/mailbox.h"
#include "control/plan_job.h"
#include "control/sessions.h"
#include "control/update_meter.h"
#include "control/update_recorder.h"
#include "weightcast/settings.h"

namespace weightcast::control {

struct Model {
  explicit Model(const std::string& called) : name(called), recorder(called) {}

  const std::string name;
  MachineState state = InitialState();
  PlanOutput plan;                                  ///< Until it is handed out.
  std::shared_ptr<const plan::FusedTensors> fused;  ///< As trainers were planned last.
  SharedPacket offered;                             ///< Of the present registrations; nullptr: not made.
  UpdateClock clock;
  UpdateRecorder recorder;
};

/// Has the models of the term, steps their machines and executes what these want done. Belongs to the thread
/// wc-controller.
class Executor {
 public:
  using Models = std::map<std::string, std::unique_ptr<Model>>;  ///< By name.

  /// `mailbox`: brings plans back to this thread. `page`: see UpdateMeter.
  Executor(const Settings& settings, Sessions& sessions, std::shared_ptr<Mailbox> mailbox,
           std::shared_ptr<PageState> page);
  ~Executor() { ending_ = true; }  ///< Waits for the plan that is being made; those that wait are dropped.
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  /// Once. kExhausted where the system gives no thread for plans.
  Status Start() { return planner_.Start(); }

  void Apply(Model& model, const Event& event);
  /// Tells the machine that the session is to end, for what its worker did; nothing if it is over.
  void EndSession(SessionId id, const Status& reason);
  void FireTimers();
  /// When the next one fires; TimePoint::max(): there is none.
  [[nodiscard]] TimePoint next_timer() const {
    return timers_.empty() ? TimePoint::max() : std::get<TimePoint>(*timers_.begin());
  }
  /// nullptr: there are too many.
  Model* ModelFor(const std::string& name);
  /// Without models and timers.
  void BeginTerm(const protocol::Term& term);
  /// A view would be another one now.
  void NoteChange() { ++changes_; }

  [[nodiscard]] uint64_t changes() const { return changes_; }
  [[nodiscard]] const MachineConfig& config() const { return config_; }
  [[nodiscard]] const Models& models() const { return models_; }

 private:
  void Execute(Model& model, Send& action) { SendTo(model, {&action.to, 1}, action.message); }
  void Execute(Model& model, SendAll& action) { SendTo(model, action.to, action.message); }
  void Execute(Model&, Refuse& action) { sessions_.End(action.session, action.reason); }
  void Execute(Model&, Forget& action) { sessions_.End(action.session, Status::Ok()); }
  void Execute(Model& model, MakePlan& action);
  void Execute(Model& model, HandOut& action);
  void Execute(Model& model, SetTimer& action);
  void Execute(Model& model, const CancelTimer& action);
  void Execute(Model& model, Note& action);
  void SendTo(Model& model, std::span<const SessionId> to, protocol::ControllerMessage& message);
  void OnPlan(Model& model, PlanOutput output);

  const Settings settings_;
  MachineConfig config_;
  Sessions& sessions_;
  const std::shared_ptr<Mailbox> mailbox_;
  Models models_;
  std::set<std::tuple<TimePoint, Model*, TimerId>> timers_;
  std::map<std::pair<Model*, TimerId>, TimePoint> timer_times_;
  uint64_t changes_ = 0;
  UpdateMeter meter_;
  trace::Timing& plans_ = trace::TimingNamed("control.plan");
  std::atomic<bool> ending_{false};
  TaskThread planner_{"wc-planner"};  ///< Last: its tasks use the others.
};

}  // namespace weightcast::control
