#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <variant>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"
#include "control/client.h"
#include "weightcast/worker.h"
#include "worker/background.h"
#include "worker/commit_group.h"
#include "worker/digests.h"
#include "worker/plan_sender.h"
#include "worker/registration.h"
#include "worker/shards.h"
#include "worker/stream_gate.h"
#include "worker/trainer_machine.h"
#include "worker/update_record.h"
#include "worker/waiting.h"

namespace weightcast {
namespace worker {
namespace {

/// Carries out what the machine of a trainer says. Its state belongs to the session's loop; users' calls
/// are tasks there.
class TrainerWorker final : public Trainer {
 public:
  TrainerWorker() : anchor_(std::make_shared<Anchor>()) { anchor_->worker = this; }
  ~TrainerWorker() override { Close(); }

  Status Open(WorkerOptions options) {
    WC_ASSIGN_OR_RETURN(group_, CommitGroup::Join(options));
    Session::Handlers handlers;
    handlers.on_message = [this](protocol::ControllerMessage message) { OnMessage(std::move(message)); };
    handlers.on_ended = [this](const Status& status) { Dispatch(SessionEnded{status}); };
    handlers.on_connected = [](const Identity&) {};
    handlers.on_disconnected = [this](const Identity& peer, const Status& status) {
      WC_LOG(kInfo, session_->text(), ": connection to ", ToString(peer), " ended: ", status.message());
    };
    interrupted_ = options.interrupted;
    WC_ASSIGN_OR_RETURN(session_, Session::Open(options, protocol::Role::kTrainer, std::move(handlers)));
    const auto send = [this](protocol::WorkerMessage message) {
      session_->client().Send(std::move(message));
    };
    const auto feed = [this](PlanSender::Event event) { OnSending(std::move(event)); };
    sender_ = std::make_unique<PlanSender>(*session_, background_, PlanSender::Callbacks{send, feed});
    WC_RETURN_IF_ERROR(sender_->Start());
    collector_ = std::make_unique<trace::Collector>([this](auto& metrics) {
      metrics.push_back(
          {"trainer.version", static_cast<double>(published_.load()), session_->labels(), /*rises=*/false});
    });
    return session_->Begin();
  }

  void Close() override {
    {
      const std::lock_guard lock(anchor_->mutex);
      anchor_->worker = nullptr;
    }
    const std::lock_guard lock(calls_);
    if (std::exchange(closed_, true) || session_ == nullptr) return;
    collector_.reset();
    std::unique_ptr<Sender> sender;
    session_->loop().RunAndWait([&] {
      Dispatch(SessionEnded{ClosedHere("this trainer")});
      sender = sender_->End();
    });
    sender.reset();  // Waits, bounded, until nobody reads the sources.
    // What it said at the end has been heard.
    session_->loop().RunAndWait([this] { records_.SetAllFree(ClosedHere("this trainer")); });
    session_->Leave();
    background_.Join();
    memory_.reset();
    session_->CloseEndpoint();
  }

  Status Register(Registration registration, SourceOptions options) override {
    const std::lock_guard lock(calls_);
    if (closed_) return ClosedHere("this trainer");
    NameRules& rules = options.rules;
    WC_RETURN_IF_ERROR(CheckRules(rules));
    group_.Qualify(rules);
    group_.Qualify(registration);
    WC_ASSIGN_OR_RETURN(std::vector<Shard> shards, ResolveShards(std::move(registration)));
    WC_ASSIGN_OR_RETURN(auto memory, RegisterSources(session_->endpoint(), std::move(shards), rules,
                                                     std::move(options.reader), session_->settings()));
    // `memory` takes the old registration out of the loop, or the new one where that was refused; it ends
    // here.
    return Call([&] {
             std::swap(memory_, memory);
             Dispatch(TrainerRegisterCalled{});
             if (!answer_->status.ok()) std::swap(memory_, memory);
           })
        .status;
  }

  Result<std::shared_ptr<Update>> Publish(int64_t number, Hold hold, std::string label,
                                          std::span<const StreamRef> streams) override {
    const std::lock_guard lock(calls_);
    if (closed_) return ClosedHere("this trainer");
    WC_RETURN_IF_ERROR(CheckAnnounced(number));
    if (announced_ && (hold != Hold::kUntilReady || !label.empty())) {
      return Error(Code::kInvalidArgument, "hold and label of version ", number,
                   " were given when it was announced; publish that version without hold and label");
    }
    WC_ASSIGN_OR_RETURN(const auto gate, RecordStreams(streams));
    std::shared_ptr<Update> update;
    if (announced_) {
      announced_->gate->Publish(gate.get());
      session_->loop().RunAndWait([this] { sender_->Look(); });
      update = std::exchange(announced_, std::nullopt)->update;
    } else {
      WC_ASSIGN_OR_RETURN(update, Offer(number, hold, std::move(label), gate));
    }
    published_ = number;
    return update;
  }

  Result<std::shared_ptr<Update>> Announce(int64_t number, Hold hold, std::string label) override {
    const std::lock_guard lock(calls_);
    if (closed_) return ClosedHere("this trainer");
    WC_RETURN_IF_ERROR(CheckAnnounced(number));
    if (announced_) return announced_->update;
    auto gate = StreamGate::Announced();
    WC_ASSIGN_OR_RETURN(auto update, Offer(number, hold, std::move(label), gate));
    announced_ = {number, std::move(gate), update};
    return update;
  }

  /// Under `calls_`, so that the memory stays registered.
  Result<Digests> Digest() override {
    WC_RETURN_IF_ERROR(process_.Check());
    const std::lock_guard lock(calls_);
    if (closed_) return ClosedHere("this trainer");
    std::shared_ptr<const SourceMemory> memory;
    session_->loop().RunAndWait([&] { memory = memory_; });
    if (memory == nullptr)
      return Status(Code::kInvalidArgument, "this trainer has registered nothing; call register first");
    return DigestsOf(memory->given(), memory->reader.get(), *memory->devices, interrupted_);
  }

  Result<std::vector<EngineStatus>> Engines() override {
    WC_RETURN_IF_ERROR(process_.Check());
    WC_ASSIGN_OR_RETURN(const auto view, session_->View());
    std::vector<EngineStatus> engines;
    for (const auto& model : view.models) {
      if (model.model != session_->model()) continue;
      for (const auto& engine : model.engines)
        engines.push_back({.name = engine.name,
                           .incarnation = engine.incarnation,
                           .state = engine.state,
                           .version = engine.version,
                           .last_error = engine.last_error});
    }
    return engines;
  }

  std::vector<std::string> ConnectionMap() const override { return session_->ConnectionMap(); }

 private:
  /// Lets an Update, and wc-device, outlive the worker.
  struct Anchor {
    std::mutex mutex;
    TrainerWorker* worker;
    /// To the loop, as long as there is one.
    void Post(const std::function<void(TrainerWorker&)>& task) {
      const std::lock_guard lock(mutex);
      if (worker != nullptr) worker->session_->loop().Post([task, to = worker] { task(*to); });
    }
  };

  /// A version that is announced and not published.
  struct Announcement {
    int64_t number = 0;
    std::shared_ptr<StreamGate> gate;
    std::shared_ptr<Update> update;
  };

  // --- The user's calls -------------------------------------------------------------------------------

  AnswerTrainer Call(std::function<void()> task) {
    AnswerTrainer answer{.status = process_.Check().ok() ? ClosedHere("this trainer") : process_.Check(),
                         .version = {}};
    session_->loop().RunAndWait([&] {
      answer_.reset();
      task();
      if (answer_) answer = *answer_;
    });
    return answer;
  }

  /// When a stream has come so far, wc-device posts to the loop that the sender should look.
  Result<std::shared_ptr<StreamGate>> RecordStreams(std::span<const StreamRef> streams) {
    if (streams.empty()) return std::shared_ptr<StreamGate>();
    const auto look = [anchor = anchor_] {
      anchor->Post([](TrainerWorker& worker) { worker.sender_->Look(); });
    };
    return StreamGate::Record(session_->settings(), streams, look);
  }

  /// One that was cancelled is forgotten.
  Status CheckAnnounced(int64_t number) {
    if (announced_ && announced_->gate->cancelled()) announced_.reset();
    if (!announced_ || announced_->number == number) return Status::Ok();
    return Error(Code::kInvalidArgument, "version ", announced_->number,
                 " is announced; publish it, or cancel it, before version ", number);
  }

  Result<std::shared_ptr<Update>> Offer(int64_t number, Hold hold, std::string label,
                                        const std::shared_ptr<StreamGate>& gate) {
    const auto post = [anchor = anchor_](const TrainerEvent& event) {
      anchor->Post([event](TrainerWorker& worker) { worker.Dispatch(event); });
    };
    UpdateRecord::Calls calls;
    calls.cancel = [post, number, gate] {
      if (gate != nullptr) gate->Cancel();
      post(CancelCalled{number});
    };
    calls.give_up = [post, number](const Status& reason) { post(NoController{number, reason}); };
    calls.explain = [settings = session_->settings(), model = session_->model(), number,
                     interrupted = interrupted_](TimePoint deadline) {
      return control::GetUpdates(settings, {.model = model, .number = number}, deadline, interrupted);
    };
    std::shared_ptr<UpdateRecord> record;
    const TimePoint called = Clock::now();
    const AnswerTrainer answer = Call([&] {
      // There before the machine can have anything to say of it.
      record = std::make_shared<UpdateRecord>(protocol::VersionOf(state_.run, number, label), interrupted_,
                                              session_->patience(), std::move(calls));
      const bool added = records_.Add(number, record, gate);
      Dispatch(PublishCalled{.number = number, .hold = hold == Hold::kUntilNext, .label = label});
      if (answer_->status.ok()) return sender_->report().Offered(number, called);
      if (added) records_.Remove(number);
    });
    if (!answer.status.ok()) return answer.status;
    return std::shared_ptr<Update>(std::move(record));
  }

  // --- What comes from the controller -----------------------------------------------------------------

  void OnMessage(protocol::ControllerMessage message) {
    const auto take = [this](auto&& value) {
      using T = std::decay_t<decltype(value)>;
      if constexpr (std::is_same_v<T, protocol::Plan>) {
        Dispatch(TrainerPlanArrived{.epoch = value.epoch, .run = value.run});
        records_.SetNote({});
        sender_->OnPlan(std::move(value), [memory = memory_] { return memory; });
      } else if constexpr (std::is_same_v<T, protocol::PeerLanding>) {
        sender_->OnLanding(std::move(value));
      } else if constexpr (std::is_same_v<T, protocol::Start>) {
        for (const auto& grant : value.grants) Dispatch(OrderOf(value, grant));
      } else if constexpr (std::is_same_v<T, protocol::Refused>) {
        // The client ends with this reason.
      } else if constexpr (std::is_constructible_v<TrainerEvent, T>) {
        if constexpr (std::is_same_v<T, protocol::Lost>) records_.SetNote(value.reason.message());
        Dispatch(std::forward<decltype(value)>(value));
      }
    };
    std::visit(take, std::move(message));
  }

  void OnSending(PlanSender::Event event) {
    if (const auto* failed = std::get_if<SendPlanFailed>(&event))
      WC_LOG(kWarning, session_->text(), ": plan of epoch ", failed->epoch, ": ", failed->reason.message());
    if (std::holds_alternative<SendPlanReady>(event)) OnPrepared();
    std::visit([this](const auto& what) { Dispatch(what); }, event);
  }

  /// Connections with peers that are not in the plan any more end.
  void OnPrepared() {
    const auto& targets = sender_->plan()->targets;
    size_t number = 0;
    for (const SendTarget& target : targets) {
      WC_LOG(kInfo, session_->text(), ": connected ", ++number, "/", targets.size(), " to ", target.name,
             ": ", target.connection.Describe());
    }
    for (const PeerInfo& peer : session_->endpoint().Peers()) {
      const bool planned = std::ranges::any_of(targets, [&](const SendTarget& target) {
        return target.connection.peer().incarnation == peer.identity.incarnation;
      });
      if (planned) continue;
      if (auto connection = session_->endpoint().Find(peer.identity.incarnation)) connection->Close();
    }
  }

  // --- What the machine wants done --------------------------------------------------------------------

  void Dispatch(const TrainerEvent& event) {
    const protocol::Run before = state_.run;
    auto actions = Advance(state_, event);
    if (state_.run != before) session_->client().SetRun(state_.run);
    if (state_.epoch == 0) sender_->DropPlan();
    for (auto& action : actions) std::visit([this](auto& a) { Execute(a); }, action);
  }

  void Execute(const SendRegistration&) {
    if (memory_ == nullptr) return;
    session_->client().Send(protocol::Register{
        .shards = InfosOf(memory_->shards), .rules = memory_->rules, .group_model = group_.model()});
  }

  /// Trainer 0 tells the outcome of a comparison by digest.
  void Execute(const FinishUpdate& action) {
    const uint32_t ranks = action.done ? action.done->compared_ranks : 0;
    if (ranks > 0 && action.done->met_policy && session_->name().rank == 0)
      WC_LOG(kInfo, "version ", ToString(action.done->version), ": trainers == engines, ",
             action.done->compared, " tensors at ", ranks, ranks == 1 ? " rank" : " ranks", ", 0 gathers");
    records_.SetDone(action.number, action.status, action.done);
  }

  void Execute(SendMessage& action) { session_->client().Send(std::move(action.message)); }
  void Execute(const BeginSending& action) {
    sender_->Begin(action.start, records_.GateOf(action.start.version.number));
  }
  void Execute(const StopSending& action) { sender_->Stop(action); }
  void Execute(const HoldSources& action) { records_.SetHeld(action.number); }
  void Execute(const FreeSources& action) { records_.SetFree(action.number, action.status); }
  void Execute(const AnswerTrainer& action) { answer_ = action; }

  Interrupted interrupted_;
  const OwnProcess process_;
  const std::shared_ptr<Anchor> anchor_;
  std::mutex calls_;  ///< One call of the user at a time, but for waits.
  bool closed_ = false;
  std::optional<Announcement> announced_;
  std::atomic<int64_t> published_{-1};  ///< For metrics.

  // The loop's.
  TrainerState state_;
  std::optional<AnswerTrainer> answer_;
  std::shared_ptr<const SourceMemory> memory_;
  UpdateRecords records_;

  CommitGroup group_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<trace::Collector> collector_;
  std::unique_ptr<PlanSender> sender_;
  Background background_{"wc-prepare"};
};

}  // namespace
}  // namespace worker

Result<std::unique_ptr<Trainer>> Trainer::Connect(WorkerOptions options) {
  auto trainer = std::make_unique<worker::TrainerWorker>();
  WC_RETURN_IF_ERROR(trainer->Open(std::move(options)));
  return std::unique_ptr<Trainer>(std::move(trainer));
}

}  // namespace weightcast
