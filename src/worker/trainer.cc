#include <atomic>
#include <map>
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
#include "worker/preparation.h"
#include "worker/registration.h"
#include "worker/send_plan.h"
#include "worker/send_report.h"
#include "worker/sender.h"
#include "worker/session.h"
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
  Status Open(WorkerOptions options);

  Status Register(Registration registration, SourceOptions options) override;
  Result<std::shared_ptr<Update>> Publish(int64_t number, Hold hold, std::string label,
                                          std::span<const StreamRef> streams) override;
  Result<std::shared_ptr<Update>> Announce(int64_t number, Hold hold, std::string label) override;
  Result<Digests> Digest() override;
  Result<std::vector<EngineStatus>> Engines() override;
  std::vector<std::string> ConnectionMap() const override;
  void Close() override;

 private:
  /// Lets an Update outlive the worker.
  struct Anchor {
    std::mutex mutex;
    TrainerWorker* worker;
  };

  // Any thread.
  Interrupted interrupted_;
  const OwnProcess process_;
  AnswerTrainer Call(std::function<void()> task);
  void Post(const TrainerEvent& event);
  Result<std::shared_ptr<StreamGate>> RecordStreams(std::span<const StreamRef> streams);
  Result<std::shared_ptr<Update>> Offer(int64_t number, Hold hold, std::string label,
                                        const std::shared_ptr<StreamGate>& gate);
  Status CheckAnnounced(int64_t number);

  // The loop.
  void OnMessage(protocol::ControllerMessage message);
  void OnPlan(protocol::Plan plan);
  void OnPrepared(const Preparation& preparation, const Result<std::shared_ptr<const SendPlan>>& plan);
  void Prepare();
  void CloseStaleConnections();
  void Prune();
  void Note(const std::string& note);
  void Feed(const TrainerEvent& event);
  void Tell(std::optional<protocol::Spans> spans);
  void Carry(SendMessage& action) { session_->client().Send(std::move(action.message)); }
  void Carry(const SendRegistration&);
  void Carry(const BeginSending& action);
  void Carry(const StopSending& action);
  void Carry(const HoldSources& action);
  void Carry(const FreeSources& action);
  void LogCompared(const protocol::Done& done) const;
  void Carry(FinishUpdate& action);
  void Carry(const AnswerTrainer& action) { answer_ = action; }

  /// A version that is announced and not published.
  struct Announcement {
    int64_t number = 0;
    std::shared_ptr<StreamGate> gate;
    std::shared_ptr<Update> update;
  };

  const std::shared_ptr<Anchor> anchor_;
  std::mutex calls_;  ///< One call of the user at a time, but for waits.
  bool closed_ = false;
  std::optional<Announcement> announced_;
  std::atomic<int64_t> published_{-1};  ///< For metrics.

  // The loop's.
  TrainerState state_;
  std::optional<AnswerTrainer> answer_;
  std::shared_ptr<const SourceMemory> memory_;
  std::shared_ptr<Preparation> preparation_;
  std::shared_ptr<const SendPlan> plan_;
  std::map<int64_t, std::shared_ptr<UpdateRecord>> records_;
  std::map<int64_t, std::shared_ptr<const StreamGate>> gates_;  ///< Of records; none: nothing to wait for.

  CommitGroup group_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<trace::Collector> collector_;
  std::unique_ptr<Sender> sender_;
  std::unique_ptr<SendReport> report_;
  Background background_{"wc-prepare"};
};

// --- Beginning and end ------------------------------------------------------------------------------

Status TrainerWorker::Open(WorkerOptions options) {
  WC_ASSIGN_OR_RETURN(group_, CommitGroup::Join(options));
  Session::Handlers handlers;
  handlers.on_message = [this](protocol::ControllerMessage message) { OnMessage(std::move(message)); };
  handlers.on_ended = [this](const Status& status) {
    Feed(SessionEnded{AsOutcome(status)});
    session_->SetOutcome(status);
  };
  handlers.on_connected = [](const Identity&) {};
  handlers.on_disconnected = [this](const Identity& peer, const Status& status) {
    WC_LOG(kInfo, session_->text(), ": connection to ", ToString(peer), " ended: ", status.message());
  };
  interrupted_ = options.interrupted;
  WC_ASSIGN_OR_RETURN(session_, Session::Open(options, protocol::Role::kTrainer, std::move(handlers)));
  report_ = std::make_unique<SendReport>(session_->loop());
  Sender::Callbacks callbacks;
  callbacks.on_ended = [this](const SendEnded& ended) {
    session_->loop().Post([this, ended] { Feed(ended); });
  };
  callbacks.on_fenced = [this](const SendFenced& fenced) {
    session_->loop().Post([this, fenced] {
      Tell(report_->Fenced(fenced));
      Feed(fenced);
    });
  };
  callbacks.on_digests = [this](protocol::SentDigests digests) {
    session_->client().Send(std::move(digests));
  };
  WC_ASSIGN_OR_RETURN(sender_,
                      Sender::Create(session_->endpoint(), session_->settings(), std::move(callbacks)));
  collector_ = std::make_unique<trace::Collector>([this](auto& metrics) {
    metrics.push_back(
        {"trainer.version", static_cast<double>(published_.load()), session_->labels(), /*rises=*/false});
  });
  return session_->Begin();
}

void TrainerWorker::Close() {
  {
    const std::lock_guard lock(anchor_->mutex);
    anchor_->worker = nullptr;
  }
  const std::lock_guard lock(calls_);
  if (std::exchange(closed_, true) || session_ == nullptr) return;
  collector_.reset();
  std::unique_ptr<Sender> sender;
  session_->loop().RunAndWait([&] {
    if (preparation_ != nullptr) preparation_->Cancel();
    Feed(SessionEnded{ClosedHere("this trainer")});
    sender = std::move(sender_);
  });
  sender.reset();                       // Waits, bounded, until nobody reads the sources.
  session_->loop().RunAndWait([this] {  // What it said at the end has been heard.
    for (auto& [number, record] : records_) record->SetFree(ClosedHere("this trainer"));
  });
  session_->Leave();
  background_.Join();
  preparation_.reset();
  plan_.reset();
  memory_.reset();
  session_->CloseEndpoint();
}

// --- The user's calls -------------------------------------------------------------------------------

AnswerTrainer TrainerWorker::Call(std::function<void()> task) {
  AnswerTrainer answer{.status = process_.Check().ok() ? ClosedHere("this trainer") : process_.Check(),
                       .version = {}};
  session_->loop().RunAndWait([&] {
    answer_.reset();
    task();
    if (answer_) answer = *answer_;
  });
  return answer;
}

Status TrainerWorker::Register(Registration registration, SourceOptions options) {
  const std::lock_guard lock(calls_);
  if (closed_) return ClosedHere("this trainer");
  NameRules& rules = options.rules;
  WC_RETURN_IF_ERROR(CheckRules(rules));
  group_.Qualify(rules);
  group_.Qualify(registration);
  WC_ASSIGN_OR_RETURN(std::vector<Shard> shards, ResolveShards(std::move(registration)));
  WC_ASSIGN_OR_RETURN(auto memory, RegisterSources(session_->endpoint(), std::move(shards), rules,
                                                   std::move(options.reader), session_->settings()));
  // `memory` takes the old registration out of the loop, or the new one where that was refused; it ends here.
  return Call([&] {
           std::swap(memory_, memory);
           Feed(TrainerRegisterCalled{});
           if (!answer_->status.ok()) return std::swap(memory_, memory);
           plan_.reset();
         })
      .status;
}

/// When a stream has come so far, wc-device posts to the loop that the sender should look.
Result<std::shared_ptr<StreamGate>> TrainerWorker::RecordStreams(std::span<const StreamRef> streams) {
  if (streams.empty()) return std::shared_ptr<StreamGate>();
  const auto look = [anchor = anchor_] {
    const std::lock_guard guard(anchor->mutex);
    if (anchor->worker == nullptr) return;
    anchor->worker->session_->loop().Post([worker = anchor->worker] {
      if (worker->sender_ != nullptr) worker->sender_->Look();
    });
  };
  return StreamGate::Record(session_->settings(), streams, look);
}

Result<std::shared_ptr<Update>> TrainerWorker::Publish(int64_t number, Hold hold, std::string label,
                                                       std::span<const StreamRef> streams) {
  const std::lock_guard lock(calls_);
  if (closed_) return ClosedHere("this trainer");
  WC_RETURN_IF_ERROR(CheckAnnounced(number));
  if (announced_ && (hold != Hold::kUntilReady || !label.empty())) {
    return Status(Code::kInvalidArgument,
                  StrCat("hold and label of version ", number,
                         " were given when it was announced; publish it without them"));
  }
  WC_ASSIGN_OR_RETURN(const auto gate, RecordStreams(streams));
  std::shared_ptr<Update> update;
  if (announced_) {
    announced_->gate->Publish(gate.get());
    session_->loop().RunAndWait([this] {
      if (sender_ != nullptr) sender_->Look();
    });
    update = std::exchange(announced_, std::nullopt)->update;
  } else {
    WC_ASSIGN_OR_RETURN(update, Offer(number, hold, std::move(label), gate));
  }
  published_ = number;
  return update;
}

Result<std::shared_ptr<Update>> TrainerWorker::Announce(int64_t number, Hold hold, std::string label) {
  const std::lock_guard lock(calls_);
  if (closed_) return ClosedHere("this trainer");
  WC_RETURN_IF_ERROR(CheckAnnounced(number));
  if (announced_) return announced_->update;
  auto gate = StreamGate::Announced();
  WC_ASSIGN_OR_RETURN(auto update, Offer(number, hold, std::move(label), gate));
  announced_ = {number, std::move(gate), update};
  return update;
}

/// One that was cancelled is forgotten.
Status TrainerWorker::CheckAnnounced(int64_t number) {
  if (announced_ && announced_->gate->cancelled()) announced_.reset();
  if (!announced_ || announced_->number == number) return Status::Ok();
  return {Code::kInvalidArgument, StrCat("version ", announced_->number,
                                         " is announced; publish it, or cancel it, before version ", number)};
}

Result<std::shared_ptr<Update>> TrainerWorker::Offer(int64_t number, Hold hold, std::string label,
                                                     const std::shared_ptr<StreamGate>& gate) {
  std::shared_ptr<UpdateRecord> record;
  const TimePoint called = Clock::now();
  const AnswerTrainer answer = Call([&] {
    // There before the machine can have anything to say of it.
    record = std::make_shared<UpdateRecord>(protocol::VersionOf(state_.run, number, label), interrupted_,
                                            session_->patience());
    const bool known = records_.contains(number);
    if (!known) records_[number] = record;
    auto before = std::exchange(gates_[number], gate);
    Feed(PublishCalled{.number = number, .hold = hold == Hold::kUntilNext, .label = label});
    if (answer_->status.ok()) return report_->Offered(number, called);
    gates_[number] = std::move(before);
    if (!known) records_.erase(number);
  });
  if (!answer.status.ok()) return answer.status;
  const auto explain = [settings = session_->settings(), model = session_->model(), number,
                        interrupted = interrupted_](TimePoint deadline) {
    return control::GetUpdates(settings, {.model = model, .number = number}, deadline, interrupted);
  };
  const auto post = [anchor = anchor_](const TrainerEvent& event) {
    const std::lock_guard guard(anchor->mutex);
    if (anchor->worker != nullptr) anchor->worker->Post(event);
  };
  return MakeUpdate(
      std::move(record),
      [post, number, gate] {
        if (gate != nullptr) gate->Cancel();
        post(CancelCalled{number});
      },
      [post, number](const Status& reason) { post(NoController{number, reason}); }, explain);
}

void TrainerWorker::Post(const TrainerEvent& event) {
  session_->loop().Post([this, event] { Feed(event); });
}

/// Under `calls_`, so that the memory stays registered.
Result<Digests> TrainerWorker::Digest() {
  WC_RETURN_IF_ERROR(process_.Check());
  const std::lock_guard lock(calls_);
  if (closed_) return ClosedHere("this trainer");
  std::shared_ptr<const SourceMemory> memory;
  session_->loop().RunAndWait([&] { memory = memory_; });
  if (memory == nullptr) return Status(Code::kInvalidArgument, "nothing is registered; call Register first");
  return DigestsOf(memory->given(), memory->reader.get(), *memory->devices, interrupted_);
}

Result<std::vector<EngineStatus>> TrainerWorker::Engines() {
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

std::vector<std::string> TrainerWorker::ConnectionMap() const { return session_->ConnectionMap(); }

// --- What comes from the controller -----------------------------------------------------------------

void TrainerWorker::OnMessage(protocol::ControllerMessage message) {
  const auto take = [this](auto&& value) {
    using T = std::decay_t<decltype(value)>;
    constexpr bool is_welcome = std::is_same_v<T, protocol::Welcome>;
    if constexpr (std::is_same_v<T, protocol::Plan>) {
      OnPlan(std::move(value));
    } else if constexpr (std::is_same_v<T, protocol::PeerLanding>) {
      if (preparation_ != nullptr && preparation_->Add(std::move(value))) Prepare();
    } else if constexpr (std::is_same_v<T, protocol::Start>) {
      for (const auto& grant : value.grants) Feed(OrderOf(value, grant));
    } else if constexpr (std::is_same_v<T, protocol::Refused>) {
      // The client ends with this reason.
    } else if constexpr (std::is_constructible_v<TrainerEvent, T>) {
      if constexpr (std::is_same_v<T, protocol::Lost>) {
        Note(value.reason.message());
        LogLoss(value);
      }
      Feed(std::forward<decltype(value)>(value));
      if constexpr (is_welcome) session_->SetOutcome(Status::Ok());
    }
  };
  std::visit(take, std::move(message));
}

void TrainerWorker::OnPlan(protocol::Plan plan) {
  if (preparation_ != nullptr) preparation_->Cancel();
  Feed(TrainerPlanArrived{.epoch = plan.epoch, .run = plan.run});
  Note({});
  preparation_ = std::make_shared<Preparation>(std::move(plan), [memory = memory_] { return memory; });
  if (preparation_->complete()) Prepare();
}

void TrainerWorker::Prepare() {
  background_.Run([this, preparation = preparation_] {
    auto plan = preparation->Run(*session_);
    session_->loop().Post([this, preparation, plan] { OnPrepared(*preparation, plan); });
  });
}

void TrainerWorker::OnPrepared(const Preparation& preparation,
                               const Result<std::shared_ptr<const SendPlan>>& plan) {
  const uint32_t epoch = preparation.epoch();
  if (epoch != state_.epoch || sender_ == nullptr) return;
  const Status status = plan.ok() ? sender_->CheckStaging(**plan) : plan.status();
  if (!status.ok()) {
    WC_LOG(kWarning, session_->text(), ": plan of epoch ", epoch, ": ", status.message());
    return Feed(SendPlanFailed{epoch, status, preparation.unreachable()});
  }
  plan_ = *plan;
  size_t number = 0;
  for (const SendTarget& target : plan_->targets) {
    WC_LOG(kInfo, session_->text(), ": connected ", ++number, "/", plan_->targets.size(), " to ", target.name,
           ": ", target.connection.Describe());
  }
  CloseStaleConnections();
  Feed(SendPlanReady{epoch});
}

/// Of peers that are not in the plan any more.
void TrainerWorker::CloseStaleConnections() {
  for (const PeerInfo& peer : session_->endpoint().Peers()) {
    bool planned = false;
    for (const SendTarget& target : plan_->targets)
      planned = planned || target.connection.peer().incarnation == peer.identity.incarnation;
    if (planned) continue;
    if (auto connection = session_->endpoint().Find(peer.identity.incarnation)) connection->Close();
  }
}

void TrainerWorker::Note(const std::string& note) {
  for (auto& [number, record] : records_) record->SetNote(note);
}

// --- What the machine wants done --------------------------------------------------------------------

void TrainerWorker::Feed(const TrainerEvent& event) {
  const protocol::Run before = state_.run;
  auto actions = Advance(state_, event);
  if (state_.run != before) session_->client().SetRun(state_.run);
  for (auto& action : actions) std::visit([this](auto& a) { Carry(a); }, action);
}

void TrainerWorker::Carry(const SendRegistration&) {
  if (memory_ == nullptr) return;
  session_->client().Send(protocol::Register{
      .shards = InfosOf(memory_->shards), .rules = memory_->rules, .group_model = group_.model()});
}

void TrainerWorker::Carry(const BeginSending& action) {
  const StartOrder& start = action.start;
  const bool usable = plan_ != nullptr && plan_->table.epoch == start.update.epoch && sender_ != nullptr;
  const int target = usable ? plan_->TargetOf(start.destination) : -1;
  if (target >= 0) {
    report_->Begun(start);
    const auto gate = gates_.find(start.version.number);
    return sender_->Start(plan_, static_cast<size_t>(target), start,
                          gate == gates_.end() ? nullptr : gate->second);
  }
  const Status status(
      Code::kProtocol,
      StrCat("told to send to destination ", start.destination,
             ", for which this trainer's table has no route; use the same weightcast on all hosts"));
  session_->loop().Post([this, start, status] {
    Feed(SendEnded{
        .update = start.update, .destination = start.destination, .part = start.part, .status = status});
    Feed(SendFenced{start.update, start.destination, start.part});
  });
}

void TrainerWorker::Tell(std::optional<protocol::Spans> spans) {
  if (spans) session_->client().Send(std::move(*spans));
}

void TrainerWorker::Carry(const StopSending& action) {
  if (sender_ != nullptr) sender_->Stop(action.update, action.destination);
}

void TrainerWorker::Carry(const HoldSources& action) {
  if (const auto at = records_.find(action.number); at != records_.end()) at->second->SetHeld();
}

void TrainerWorker::Carry(const FreeSources& action) {
  const auto at = records_.find(action.number);
  if (at == records_.end()) return;
  at->second->SetFree(action.status);
  Prune();
}

/// Trainer 0 tells the outcome of a comparison by digest.
void TrainerWorker::LogCompared(const protocol::Done& done) const {
  const uint32_t ranks = done.compared_ranks;
  if (!done.met_policy || ranks == 0 || session_->name().rank != 0) return;
  WC_LOG(kInfo, "version ", ToString(done.version), ": trainers == engines, ", done.compared, " tensors at ",
         ranks, ranks == 1 ? " rank" : " ranks", ", 0 gathers");
}

void TrainerWorker::Carry(FinishUpdate& action) {
  const auto at = records_.find(action.number);
  if (at == records_.end()) return;
  if (action.done) {
    LogCompared(*action.done);
    at->second->SetDone(StatsOf(*action.done), EnginesOf(*action.done));
  } else {
    at->second->SetDone(action.status);
  }
  Prune();
}

/// Of what is over only the newest may come up again: it may be held.
void TrainerWorker::Prune() {
  const int64_t newest = records_.rbegin()->first;
  std::erase_if(records_, [&](const auto& entry) { return entry.first != newest && entry.second->over(); });
  std::erase_if(gates_, [&](const auto& entry) { return !records_.contains(entry.first); });
}

}  // namespace
}  // namespace worker

Result<std::unique_ptr<Trainer>> Trainer::Connect(WorkerOptions options) {
  auto trainer = std::make_unique<worker::TrainerWorker>();
  WC_RETURN_IF_ERROR(trainer->Open(std::move(options)));
  return std::unique_ptr<Trainer>(std::move(trainer));
}

}  // namespace weightcast
