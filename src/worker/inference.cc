#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/log.h"
#include "base/strings.h"
#include "weightcast/worker.h"
#include "worker/background.h"
#include "worker/giver.h"
#include "worker/inference_machine.h"
#include "worker/landing.h"
#include "worker/receiver.h"
#include "worker/session.h"
#include "worker/shards.h"
#include "worker/waiting.h"

namespace weightcast {
namespace worker {
namespace {

Status Closed() { return {Code::kCancelled, "this inference rank was closed"}; }

/// Carries out what the machine of an inference rank says. Its state belongs to the session's loop; a call of
/// the user is a task there, and the user's thread waits for its answer (and copies, where landing is
/// shadow).
class InferenceWorker final : public Inference {
 public:
  ~InferenceWorker() override { Close(); }
  Status Open(const WorkerOptions& options);

  Status Register(std::vector<Shard> shards, LandingMode landing, bool shares) override;
  Result<Version> Wait(Version newer_than, double timeout) override;
  Status Begin() override;
  Result<Version> Receive(double timeout) override;
  Status Finish(double timeout) override;
  Status Abort() override;
  Version version() const override;
  std::string state() const override;
  Status last_error() const override;
  std::vector<std::string> Describe() const override;
  std::vector<std::string> ConnectionMap() const override;
  void Close() override;

 private:
  /// What others may see of the state, and the call that waits.
  struct Shared {
    Version served;
    wire::EngineState state = wire::EngineState::kJoining;
    Status last_error;
    bool idle = true;   ///< No update is under way.
    bool lent = false;  ///< Others may be reading the landing memory.
    std::optional<AnswerCall> answer;
    struct Copy {
      wire::UpdateId update;
      std::shared_ptr<const LandingMemory> memory;
    };
    std::optional<Copy> copy;
    std::shared_ptr<const LandingMemory> memory;  ///< For Describe.
  };

  // The user's threads.
  Interrupted interrupted_;
  const OwnProcess process_;
  AnswerCall Call(const std::function<void()>& task, TimePoint deadline);
  AnswerCall Call(const InferenceEvent& event, TimePoint deadline);
  AnswerCall WaitForAnswer(TimePoint deadline);
  void RunInLoop(const std::function<void()>& task);
  void Reclaim();
  void Shut();

  // The loop.
  void OnMessage(wire::ControllerMessage message);
  void OnPlan(wire::Plan plan);
  void OnTable(uint32_t epoch, const Result<std::shared_ptr<const ReceivePlan>>& plan);
  void OnConnected();
  void OnDisconnected(const Identity& peer, const Status& status);
  void OnSessionEnded(const Status& status);
  void Feed(InferenceEvent event);
  void Show();
  void Carry(SendMessage& action) { session_->client().Send(std::move(action.message)); }
  void Carry(const SendRegistration&);
  void Carry(const ReclaimMemory&);
  void Carry(const OpenGrants& action);
  void Carry(const RevokeGrants& action);
  void Carry(const VerifyChecksums& action);
  void Carry(const CopyShadow& action);
  void Carry(const AnswerCall& action);

  std::mutex calls_;  ///< Held during a call of the user.
  bool closed_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Shared shared_;

  // The loop's.
  InferenceState state_;
  std::deque<InferenceEvent> events_;  ///< Those that came while one was being taken.
  bool feeding_ = false;
  std::shared_ptr<LandingMemory> memory_;
  std::shared_ptr<const ReceivePlan> plan_;
  std::vector<std::string> accepted_;  ///< Per source of the plan its connection; empty: not there yet.
  std::shared_ptr<GrantSet> grants_;

  std::unique_ptr<Session> session_;
  std::unique_ptr<Giver> giver_;
  Background background_{"wc-prepare"};
};

// --- Beginning and end ------------------------------------------------------------------------------

Status InferenceWorker::Open(const WorkerOptions& options) {
  Session::Handlers handlers;
  handlers.on_message = [this](wire::ControllerMessage message) { OnMessage(std::move(message)); };
  handlers.on_ended = [this](const Status& status) { OnSessionEnded(status); };
  handlers.on_connected = [this](const Identity&) { OnConnected(); };
  handlers.on_disconnected = [this](const Identity& peer, const Status& status) {
    OnDisconnected(peer, status);
  };
  WC_ASSIGN_OR_RETURN(session_, Session::Open(options, wire::Role::kInference, std::move(handlers)));
  interrupted_ = options.interrupted;
  state_.self = session_->name();
  state_.verify = session_->settings().checksum != 0;
  Giver::Callbacks giving;
  giving.send = [this](wire::WorkerMessage message) { session_->client().Send(std::move(message)); };
  giving.held = [this] { return VersionToLend(state_); };
  giving.on_lent = [this](bool lent) { lent ? Feed(MemoryLent{}) : Feed(MemoryFree{}); };
  giver_ = std::make_unique<Giver>(*session_, background_, std::move(giving));
  return session_->Begin();
}

void InferenceWorker::Close() {
  if (session_ == nullptr) return;
  // Ends the call that another thread may be in.
  session_->loop().Post([this] { OnSessionEnded(Closed()); });
  const std::lock_guard lock(calls_);
  if (!std::exchange(closed_, true)) Shut();
}

void InferenceWorker::Shut() {
  const TimePoint deadline = Clock::now() + 2 * session_->settings().lease;
  std::unique_ptr<Sender> sender;
  RunInLoop([&] { sender = giver_->End(); });
  sender.reset();  // Waits, bounded, until nobody reads the memory.
  {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return shared_.idle; });
  }
  session_->Leave();
  background_.Join();
  giver_.reset();
  grants_.reset();
  plan_.reset();
  if (memory_ != nullptr && !memory_->Close(deadline).ok()) {
    WC_LOG(kWarning, session_->text(), ": a stopped peer may still write to the registered memory; ",
           "do not use it for anything else until that peer has ended");
    if (memory_->mode() == LandingMode::kShadow)  // Quarantined: never given back.
        [[maybe_unused]]
      const auto* kept = new std::shared_ptr<LandingMemory>(memory_);
  }
  memory_.reset();
  session_->CloseEndpoint();
}

// --- The user's calls -------------------------------------------------------------------------------

AnswerCall InferenceWorker::Call(const InferenceEvent& event, TimePoint deadline) {
  return Call([&] { Feed(event); }, deadline);
}

AnswerCall InferenceWorker::Call(const std::function<void()>& task, TimePoint deadline) {
  if (Status process = process_.Check(); !process.ok()) return {.status = process, .version = {}};
  const std::unique_lock call(calls_, std::try_to_lock);
  if (!call.owns_lock()) {
    const Status busy(Code::kInvalidArgument, "another thread is inside a call of this inference rank");
    return {.status = busy, .version = {}};
  }
  {
    const std::lock_guard lock(mutex_);
    shared_.answer.reset();
  }
  if (closed_) return {.status = Closed(), .version = {}};
  RunInLoop(task);
  return WaitForAnswer(deadline);
}

/// The task uses the caller's stack: nothing returns before it is over, even if it gives the answer.
void InferenceWorker::RunInLoop(const std::function<void()>& task) {
  std::promise<void> over;
  const bool posted = session_->loop().Post([&] {
    task();
    over.set_value();
  });
  if (posted) over.get_future().wait();
}

AnswerCall InferenceWorker::WaitForAnswer(TimePoint deadline) {
  const auto again = std::max<Duration>(2 * session_->settings().lease, std::chrono::seconds(1));
  std::unique_lock lock(mutex_);
  while (true) {
    const auto awake = [&] { return shared_.answer || shared_.copy; };
    const Woken woken = WaitUntil(lock, changed_, deadline, interrupted_, awake);
    if (shared_.copy) {
      const auto copy = *std::exchange(shared_.copy, std::nullopt);
      lock.unlock();
      copy.memory->CopyToLive();
      session_->loop().Post([this, update = copy.update] { Feed(Copied{update}); });
      lock.lock();
    } else if (woken == Woken::kDone) {
      return *shared_.answer;
    } else {
      // The machine decides whether the call may end now; it is asked again while it may not.
      const bool interrupted = woken == Woken::kInterrupted;
      session_->loop().Post([this, interrupted] { Feed(CallExpired{interrupted}); });
      deadline = Clock::now() + again;
    }
  }
}

/// The registered memory is given to nobody any more; waits, bounded, until nobody reads it. Under `calls_`.
void InferenceWorker::Reclaim() {
  const TimePoint deadline = Clock::now() + 2 * session_->settings().lease;
  RunInLoop([this] {
    const Status reason(Code::kCancelled, StrCat(session_->text(), " registered anew"));
    giver_->Feed(MemoryReclaimed{.reason = reason, .leaves = true});
  });
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return !shared_.lent; });
}

Status InferenceWorker::Register(std::vector<Shard> shards, LandingMode landing, bool shares) {
  auto registered = [&]() -> Result<std::shared_ptr<LandingMemory>> {
    const std::unique_lock call(calls_, std::try_to_lock);
    if (!call.owns_lock())
      return Status(Code::kInvalidArgument, "another thread is inside a call of this inference rank");
    if (closed_) return Closed();
    WC_ASSIGN_OR_RETURN(auto made, LandingMemory::Register(session_->endpoint(), std::move(shards), landing));
    Reclaim();
    return made;
  }();
  if (!registered.ok()) return registered.status();
  // Takes the old registration out of the loop, or the new one where that was refused; it ends here.
  std::shared_ptr<LandingMemory> memory = std::move(*registered);
  const auto mode = landing == LandingMode::kShadow ? wire::Landing::kShadow : wire::Landing::kInPlace;
  const auto task = [&] {
    const bool same = memory_ != nullptr && memory_->SameMemory(*memory);
    std::swap(memory_, memory);
    Feed(RegisterCalled{.landing = mode, .same_memory = same, .shares = shares});
    const std::lock_guard lock(mutex_);
    if (!shared_.answer->status.ok()) return std::swap(memory_, memory);
    shared_.memory = memory_;
    plan_.reset();
    grants_.reset();  // They keep the memory of before.
  };
  return Call(task, TimePoint::max()).status;
}

Status InferenceWorker::Begin() { return Call(BeginCalled{}, TimePoint::max()).status; }

Result<Version> InferenceWorker::Receive(double timeout) {
  const AnswerCall answer = Call(ReceiveCalled{}, DeadlineIn(timeout));
  if (!answer.status.ok()) return answer.status;
  return answer.version;
}

Status InferenceWorker::Finish(double timeout) { return Call(FinishCalled{}, DeadlineIn(timeout)).status; }

Status InferenceWorker::Abort() {
  return Call(AbortCalled{}, Clock::now() + 2 * session_->settings().lease).status;
}

Result<Version> InferenceWorker::Wait(Version newer_than, double timeout) {
  const TimePoint deadline = DeadlineIn(timeout);
  while (true) {
    const Version served = version();
    if (served.number >= 0 && served > newer_than) return served;
    const AnswerCall answer = Call(WaitCalled{}, deadline);
    if (!answer.status.ok()) return answer.status;
  }
}

// --- What others see --------------------------------------------------------------------------------

Version InferenceWorker::version() const {
  const std::lock_guard lock(mutex_);
  return shared_.served;
}

std::string InferenceWorker::state() const {
  const std::lock_guard lock(mutex_);
  return std::string(wire::NameOf(shared_.state));
}

Status InferenceWorker::last_error() const {
  const std::lock_guard lock(mutex_);
  return shared_.last_error;
}

std::vector<std::string> InferenceWorker::Describe() const {
  std::shared_ptr<const LandingMemory> memory;
  {
    const std::lock_guard lock(mutex_);
    memory = shared_.memory;
  }
  return memory == nullptr ? std::vector<std::string>() : memory->Describe();
}

std::vector<std::string> InferenceWorker::ConnectionMap() const { return session_->ConnectionMap(); }

// --- What comes from outside ------------------------------------------------------------------------

void InferenceWorker::OnMessage(wire::ControllerMessage message) {
  const auto take = [this](auto&& value) {
    using T = std::decay_t<decltype(value)>;
    constexpr bool is_welcome = std::is_same_v<T, wire::Welcome>;
    // Before the rank's own machine: what a new session makes void is given no more.
    if constexpr (std::is_constructible_v<GiverEvent, T>) giver_->Feed(value);
    if constexpr (std::is_same_v<T, wire::Plan>) {
      OnPlan(std::move(value));
    } else if constexpr (std::is_same_v<T, wire::PeerLanding>) {
      giver_->OnLanding(std::move(value));
    } else if constexpr (std::is_same_v<T, wire::Start>) {
      giver_->OnStart(value);
    } else if constexpr (std::is_constructible_v<InferenceEvent, T>) {
      if constexpr (std::is_same_v<T, wire::Lost>) LogLoss(value);
      if constexpr (std::is_same_v<T, wire::Lost> || std::is_same_v<T, wire::Abort>)
        value.reason = AsOutcome(std::move(value.reason));
      Feed(std::forward<decltype(value)>(value));
      if constexpr (is_welcome) session_->SetOutcome(Status::Ok());
    }
    // Refused: the client ends with its reason. Superseded: nothing had come here of that version.
  };
  std::visit(take, std::move(message));
}

void InferenceWorker::OnSessionEnded(const Status& status) {
  giver_->Feed(GiverEnded{});
  Feed(SessionEnded{AsOutcome(status)});
  session_->SetOutcome(status);
  // A call that must not end while a stopped process may write ends all the same, with that news.
  session_->loop().After(2 * session_->settings().lease, [this] { Feed(CallExpired{}); });
}

void InferenceWorker::OnPlan(wire::Plan plan) {
  const uint32_t epoch = plan.epoch;
  if (plan.gives) return giver_->OnPlan(std::move(plan), memory_);
  giver_->OnOtherPlan(epoch);
  plan_.reset();
  Feed(PlanArrived{epoch});
  if (memory_ == nullptr) return;
  auto shared = std::make_shared<wire::Plan>(std::move(plan));
  background_.Run([this, shared, memory = memory_] {
    auto made = MakeReceivePlan(*shared, session_->settings().tables, memory);
    session_->loop().Post([this, epoch = shared->epoch, made] { OnTable(epoch, made); });
  });
}

void InferenceWorker::OnTable(uint32_t epoch, const Result<std::shared_ptr<const ReceivePlan>>& plan) {
  if (epoch != state_.epoch) return;
  if (!plan.ok()) {
    WC_LOG(kWarning, session_->text(), ": plan of epoch ", epoch, ": ", plan.status().message());
    return Feed(PlanFailed{epoch, plan.status()});
  }
  plan_ = *plan;
  accepted_.assign(plan_->sources.size(), {});
  OnConnected();
}

/// The sources connect; when the last is there this rank is prepared.
void InferenceWorker::OnConnected() {
  if (plan_ == nullptr || state_.prepared) return;
  const auto missing = [this] { return std::count(accepted_.begin(), accepted_.end(), std::string()); };
  for (size_t i = 0; i < accepted_.size(); ++i) {
    if (!accepted_[i].empty()) continue;
    const auto connection = session_->endpoint().Find(plan_->sources[i].incarnation);
    if (!connection) continue;
    accepted_[i] = StrCat(plan_->sources[i].name, ": ", connection->Describe());
    WC_LOG(kInfo, session_->text(), ": accepted ", std::ssize(accepted_) - missing(), "/", accepted_.size(),
           " from ", accepted_[i]);
  }
  if (missing() == 0) Feed(PlanReady{.epoch = state_.epoch, .connections = accepted_});
}

void InferenceWorker::OnDisconnected(const Identity& peer, const Status& status) {
  WC_LOG(kInfo, session_->text(), ": connection with ", ToString(peer), " ended: ", status.message());
  const auto* source = grants_ == nullptr ? nullptr : grants_->Missing(peer.incarnation);
  if (source == nullptr || state_.step != Step::kWriting) return;
  const Status reason(status.code(), StrCat("the connection from ", source->name,
                                            " ended before all its bytes had come: ", status.message()));
  Feed(SourceLost{state_.update, reason, int64_t{source->source}});
}

// --- What the machine wants done --------------------------------------------------------------------

void InferenceWorker::Feed(InferenceEvent event) {
  events_.push_back(std::move(event));
  if (std::exchange(feeding_, true)) return;
  while (!events_.empty()) {
    const InferenceEvent next = std::move(events_.front());
    events_.pop_front();
    auto actions = Advance(state_, next);
    Show();
    for (auto& action : actions) std::visit([this](auto& a) { Carry(a); }, action);
  }
  feeding_ = false;
}

/// Before any action: it may let the live tensors change, and then nobody may see a version.
void InferenceWorker::Show() {
  bool changed = false;
  {
    const std::lock_guard lock(mutex_);
    changed = shared_.served != state_.served || shared_.state != state_.state;
    shared_.served = state_.served;
    shared_.state = state_.state;
    shared_.last_error = state_.last_error;
    shared_.idle = state_.step == Step::kNone;
    shared_.lent = state_.lent;
  }
  changed_.notify_all();
  if (changed) session_->client().SetState(state_.state, state_.served);
}

void InferenceWorker::Carry(const SendRegistration&) {
  if (memory_ == nullptr) return;
  session_->client().Send(wire::Register{.shards = InfosOf(memory_->shards()),
                                         .rules = {},
                                         .landing = state_.landing,
                                         .state = state_.state,
                                         .version = state_.served,
                                         .shares = state_.shares});
  session_->client().Send(memory_->Map());
}

void InferenceWorker::Carry(const ReclaimMemory&) {
  const Status reason(Code::kCancelled, StrCat(session_->text(), " receives a newer version"));
  giver_->Feed(MemoryReclaimed{.reason = reason});
}

void InferenceWorker::Carry(const OpenGrants& action) {
  const auto complete = [this, update = action.update] {
    session_->loop().Post([this, update] {
      if (grants_ == nullptr) return;
      Feed(Arrived{update, grants_->bytes(), grants_->seconds(), grants_->sources()});
    });
  };
  if (plan_ != nullptr) {
    for (const auto& source : plan_->sources) {
      if (session_->endpoint().Find(source.incarnation)) continue;
      const Status reason(Code::kUnavailable, StrCat("there is no connection from ", source.name));
      return Feed(OpenFailed{action.update, reason, int64_t{source.source}});
    }
  }
  const Status no_plan(Code::kInternal, "grants were asked for without a table");
  auto opened = plan_ == nullptr ? Result<std::shared_ptr<GrantSet>>(no_plan)
                                 : GrantSet::Open(session_->endpoint(), plan_, state_.verify, complete);
  if (!opened.ok()) return Feed(OpenFailed{action.update, opened.status()});
  grants_ = *opened;
  Feed(GrantsOpened{action.update, grants_->grants()});
}

void InferenceWorker::Carry(const RevokeGrants& action) {
  grants_->Revoke([this, update = action.update] {
    session_->loop().Post([this, update] { Feed(GrantsFenced{update}); });
  });
}

void InferenceWorker::Carry(const VerifyChecksums& action) {
  background_.Run([this, grants = grants_, update = action.update] {
    const Status status = grants->Verify();
    session_->loop().Post([this, update, status] { Feed(Verified{update, status}); });
  });
}

void InferenceWorker::Carry(const CopyShadow& action) {
  {
    const std::lock_guard lock(mutex_);
    shared_.copy = {.update = action.update, .memory = memory_};
  }
  changed_.notify_all();
}

void InferenceWorker::Carry(const AnswerCall& action) {
  {
    const std::lock_guard lock(mutex_);
    shared_.answer = action;
  }
  changed_.notify_all();
}

}  // namespace
}  // namespace worker

Result<std::unique_ptr<Inference>> Inference::Connect(WorkerOptions options) {
  auto inference = std::make_unique<worker::InferenceWorker>();
  WC_RETURN_IF_ERROR(inference->Open(options));
  return std::unique_ptr<Inference>(std::move(inference));
}

}  // namespace weightcast
