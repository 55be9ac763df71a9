#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/task_thread.h"
#include "control/controller_machine.h"
#include "control/kept_places.h"
#include "control/listener.h"
#include "control/mailbox.h"
#include "control/message_trace.h"
#include "control/page_state.h"
#include "control/planner_thread.h"
#include "control/session_link.h"
#include "control/update_meter.h"
#include "control/update_recorder.h"
#include "trace/metrics.h"
#include "weightcast/clock.h"
#include "weightcast/settings.h"

namespace weightcast::control {

/// The controller without its network: owns the machine of each model, the sessions and the timers, in one
/// thread (`wc-controller`) that everything reaches through its mailbox.
class Core {
 public:
  /// `page`: where views and updates are shown, too; nullptr: nowhere.
  explicit Core(const Settings& settings, std::shared_ptr<PageState> page = nullptr);
  ~Core();  ///< Stops.
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  /// Once, before sessions come. kExhausted where the system gives no thread.
  Status Start();
  /// For the listener; any thread.
  [[nodiscard]] ListenerHandlers Handlers();
  /// Ends the thread. Sessions are dropped without a word: their workers try to come back.
  void Stop();

 private:
  struct Model {
    explicit Model(const std::string& called) : name(called), recorder(called) {}

    std::string name;
    MachineState state = InitialState();
    PlanOutput plan;                                  ///< Until it is handed out.
    std::shared_ptr<const plan::FusedTensors> fused;  ///< As trainers were planned last.
    SharedPacket offered;                             ///< Of the present registrations; nullptr: not made.
    UpdateClock clock;
    UpdateRecorder recorder;
  };
  struct Session {
    SessionId id = 0;
    uint64_t key = 0;  ///< Names the session to its worker.
    Model* model = nullptr;
    protocol::Hello hello;
    std::shared_ptr<SessionLink> link;
    std::shared_ptr<WorkerStream> stream;  ///< nullptr while broken.
    TimePoint heard;
    std::shared_ptr<const protocol::Register> registration;
    std::shared_ptr<const protocol::LandingMap> landing;
    std::vector<std::string> connections;  ///< As the worker last told them.
    bool asks_offered = false;
    uint64_t tensors_hash = 0;  ///< Of what a trainer has registered.
  };
  /// A stream that is not (or no more) a session's, and how long it may stay.
  struct Stray {
    std::shared_ptr<WorkerStream> stream;
    TimePoint until;
    bool closing = false;
  };
  /// Somebody who watches.
  struct Watcher {
    bool asks = false;             ///< Asks for traces, and sees no views.
    std::optional<uint64_t> from;  ///< What it has asked.
  };
  struct Timer {
    TimePoint at;
    Model* model = nullptr;
    TimerId id;
    friend auto operator<=>(const Timer&, const Timer&) = default;
  };

  void Run();
  /// Heartbeats, leases, strays. Returns when to come again.
  void Tick();
  void FireTimers();
  [[nodiscard]] bool IsWatched() const { return page_ != nullptr || !watchers_.empty(); }
  void ShowViews();
  void ShowTraces();
  [[nodiscard]] bool AnyUnderWay() const;
  /// While updates are under way: notes when this thread did not run, or was long at one thing.
  void WatchStalls(bool watched);

  // Streams (core_streams.cc).
  void OnOpen(const std::shared_ptr<WorkerStream>& stream);
  void OnMessage(const std::shared_ptr<WorkerStream>& stream, Incoming incoming);
  void OnClosed(const std::shared_ptr<WorkerStream>& stream, const Status& reason);
  void OnHello(const std::shared_ptr<WorkerStream>& stream, Incoming& incoming);
  Session* FindResumable(const Incoming& incoming, const protocol::Hello& hello);
  void Resume(Session& session, const std::shared_ptr<WorkerStream>& stream);
  /// Begins the next term if a worker has followed one that is not older. kInvalidArgument: it is too far.
  Status FollowTerm(const protocol::Hello& hello);
  void BeginTerm(const protocol::Term& term);
  [[nodiscard]] bool IsTaken(const protocol::Hello& hello) const;
  void RefuseStream(const std::shared_ptr<WorkerStream>& stream, const protocol::Hello& hello,
                    const Status& reason);
  void Hear(Session& session, Incoming incoming);
  void AnswerAskers(Model& model);
  void Offend(Session& session, const Status& reason);
  void Welcome(Session& session, const protocol::Welcome& welcome);
  void NoteSent(const Session& session, uint64_t number, const SharedPacket& packet);
  void CloseStream(Session& session, const Status& reason);
  Model* ModelFor(const std::string& name);
  void OnAsk(const std::shared_ptr<ViewSink>& sink, const protocol::AskTrace& ask);
  void OnAsk(const std::shared_ptr<ViewSink>& sink, const protocol::AskUpdates& ask);

  // The machine's wishes (core_actions.cc).
  void Apply(Model& model, const Event& event);
  void Do(Model& model, Send& action) { Tell(model, {&action.to, 1}, action.message); }
  void Do(Model& model, SendAll& action) { Tell(model, action.to, action.message); }
  void Tell(Model& model, std::span<const SessionId> to, protocol::ControllerMessage& message);
  void Do(Model& model, Refuse& action);
  void Do(Model& model, Forget& action);
  void Do(Model& model, MakePlan& action);
  void Do(Model& model, HandOut& action);
  void Do(Model& model, SetTimer& action);
  void Do(Model& model, CancelTimer& action);
  void Do(Model& model, Note& action);
  void Push(Session& session, const SharedPacket& packet);
  void OnPlan(const std::string& name, const protocol::Term& term, PlanOutput output);
  [[nodiscard]] PlanMember MemberOf(SessionId id) const;
  [[nodiscard]] protocol::ClusterView View() const;
  /// For Prometheus; any thread but this one's.
  void Collect(std::vector<trace::Metric>& metrics);

  const Settings settings_;
  MachineConfig config_;
  const Duration beat_;  ///< Between heartbeats.
  const SharedPacket heartbeat_;
  const std::shared_ptr<Mailbox> mailbox_;
  const std::shared_ptr<PageState> page_;

  std::map<std::string, std::unique_ptr<Model>> models_;
  std::map<SessionId, std::unique_ptr<Session>> sessions_;
  std::unordered_map<WorkerStream*, SessionId> by_stream_;
  std::vector<Stray> strays_;
  KeptPlaces kept_;
  std::set<Timer> timers_;
  std::map<std::pair<Model*, TimerId>, TimePoint> timer_times_;
  std::map<std::shared_ptr<ViewSink>, Watcher> watchers_;
  MessageTrace recent_;
  SessionId last_session_ = 0;
  TimePoint next_tick_;
  TimePoint next_view_;
  TimePoint earliest_view_;
  TimePoint next_look_;  ///< For stalls.
  bool view_changed_ = false;
  bool stop_ = false;

  trace::Counter& messages_in_ = trace::CounterNamed("control.messages_in");
  trace::Counter& messages_out_ = trace::CounterNamed("control.messages_out");
  trace::Counter& breaks_ = trace::CounterNamed("control.streams_broken");
  UpdateMeter meter_{page_};
  PlannerThread planner_;
  TaskThread explainer_{"wc-explain"};
  std::thread thread_;
  std::unique_ptr<trace::Collector> collector_;  ///< While the thread runs.
};

}  // namespace weightcast::control
