#include "worker/inference_worker.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/log.h"
#include "base/strings.h"
#include "worker/shards.h"

// The loop's side: what comes from outside, and what the machine wants done.
namespace weightcast::worker {

// --- Beginning ------------------------------------------------------------------------------

Status InferenceWorker::Open(WorkerOptions options) {
  WC_ASSIGN_OR_RETURN(group_, CommitGroup::Join(options));
  Session::Handlers handlers;
  handlers.on_message = [this](protocol::ControllerMessage message) { OnMessage(std::move(message)); };
  handlers.on_ended = [this](const Status& status) { OnSessionEnded(status); };
  handlers.on_connected = [this](const Identity&) { OnConnected(); };
  handlers.on_disconnected = [this](const Identity& peer, const Status& status) {
    OnDisconnected(peer, status);
  };
  WC_ASSIGN_OR_RETURN(session_, Session::Open(options, protocol::Role::kInference, std::move(handlers)));
  stalls_ = std::make_unique<StallWatch>(session_->loop());
  interrupted_ = options.interrupted;
  state_.self = session_->name();
  state_.compares = session_->settings().compare != 0;
  state_.verify = state_.compares || session_->settings().checksum != 0;
  PeerSource::Callbacks giving;
  giving.send = [this](protocol::WorkerMessage message) { session_->client().Send(std::move(message)); };
  giving.held = [this] { return VersionToLend(state_); };
  giving.on_lent = [this](bool lent) { lent ? Feed(MemoryLent{}) : Feed(MemoryFree{}); };
  peer_source_ = std::make_unique<PeerSource>(*session_, background_, std::move(giving));
  collector_ = std::make_unique<trace::Collector>([this](auto& metrics) { Collect(metrics); });
  return session_->Begin();
}

// --- What comes from outside ------------------------------------------------------------------------

void InferenceWorker::OnMessage(protocol::ControllerMessage message) {
  const auto take = [this](auto&& value) {
    using T = std::decay_t<decltype(value)>;
    constexpr bool is_welcome = std::is_same_v<T, protocol::Welcome>;
    // Before the rank's own machine: what a new session makes void is given no more.
    if constexpr (std::is_constructible_v<PeerSourceEvent, T>) peer_source_->Feed(value);
    if constexpr (std::is_same_v<T, protocol::Offered>) {
      OnOffered(std::move(value));
    } else if constexpr (std::is_same_v<T, protocol::Plan>) {
      OnPlan(std::move(value));
    } else if constexpr (std::is_same_v<T, protocol::PeerLanding>) {
      peer_source_->OnLanding(std::move(value));
    } else if constexpr (std::is_same_v<T, protocol::Start>) {
      for (const auto& grant : value.grants) peer_source_->OnStart(OrderOf(value, grant));
    } else if constexpr (std::is_same_v<T, protocol::SourceDigests>) {
      if (grants_ != nullptr && value.update == state_.update && value.part == state_.part)
        grants_->OnDigests(std::move(value));
    } else if constexpr (std::is_constructible_v<InferenceEvent, T>) {
      if constexpr (std::is_same_v<T, protocol::Lost>) LogLoss(value);
      if constexpr (std::is_same_v<T, protocol::Lost> || std::is_same_v<T, protocol::Abort>)
        value.reason = AsOutcome(std::move(value.reason));
      Feed(std::forward<decltype(value)>(value));
      if constexpr (is_welcome) {
        session_->SetOutcome(Status::Ok());
        if (asking_) session_->client().Send(protocol::AskOffered{});
      }
    }
    // Refused: the client ends with its reason. Superseded: nothing had come here of that version.
  };
  std::visit(take, std::move(message));
}

void InferenceWorker::OnSessionEnded(const Status& status) {
  peer_source_->Feed(SessionEnded{});
  Feed(SessionEnded{AsOutcome(status)});
  session_->SetOutcome(status);
  {
    const std::lock_guard lock(mutex_);
    shared_.ended = AsOutcome(status);
  }
  changed_.notify_all();
  // A call that must not end while a stopped process may write ends all the same, with that news.
  session_->loop().After(2 * session_->settings().lease, [this] { Feed(CallExpired{}); });
}

void InferenceWorker::OnOffered(protocol::Offered offered) {
  asking_ = false;
  {
    const std::lock_guard lock(mutex_);
    shared_.offered = std::move(offered.tensors);
  }
  changed_.notify_all();
}

void InferenceWorker::OnPlan(protocol::Plan plan) {
  const uint32_t epoch = plan.epoch;
  if (plan.gives) return peer_source_->OnPlan(std::move(plan), memory_);
  peer_source_->OnOtherPlan(epoch);
  plan_.reset();
  Feed(PlanArrived{epoch});
  if (memory_ == nullptr) return;
  auto shared = std::make_shared<protocol::Plan>(std::move(plan));
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
    const Step step = state_.step;
    auto actions = Advance(state_, next);
    Show();
    if (state_.step != step) Measure(step);
    TellSpans();
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
  if (changed) session_->client().SetServed(state_.state, state_.served, state_.newest);
}

/// The machine has left a step.
void InferenceWorker::Measure(Step left) {
  const TimePoint now = Clock::now();
  const Duration took = now - std::exchange(step_began_, now);
  if (left != Step::kNone) trace::TimingNamed(StrCat("inference.", NameOf(left))).Add(took);
  if (left == Step::kWriting && state_.step == Step::kFencing)
    trace::CounterNamed("inference.bytes").Add(state_.bytes);
  if (state_.step == Step::kAborting) trace::CounterNamed("inference.aborts").Add();
}

/// Before what ends the update goes out: the controller has the spans then.
void InferenceWorker::TellSpans() {
  stalls_->Watch(state_.step != Step::kNone);
  if (auto spans = phases_.Look(state_, Clock::now(), stalls_->seconds()))
    session_->client().Send(std::move(*spans));
}

/// Any thread.
void InferenceWorker::Collect(std::vector<trace::Metric>& metrics) const {
  const std::lock_guard lock(mutex_);
  auto labels = session_->labels();
  metrics.push_back(
      {"inference.version", static_cast<double>(shared_.served.number), labels, /*rises=*/false});
  labels.emplace_back("state", protocol::NameOf(shared_.state));
  metrics.push_back({"inference.state", 1, std::move(labels), /*rises=*/false});
}

void InferenceWorker::Carry(const SendRegistration&) {
  if (memory_ == nullptr) return;
  session_->client().Send(protocol::Register{.shards = InfosOf(memory_->shards()),
                                             .rules = {},
                                             .landing = state_.landing,
                                             .state = state_.state,
                                             .version = state_.served,
                                             .shares = state_.shares,
                                             .landed = state_.landed,
                                             .controlled = state_.controlled,
                                             .newest = state_.newest,
                                             .unwanted = options_.unwanted,
                                             .group_model = group_.model(),
                                             .parts = memory_->parts()});
  session_->client().Send(memory_->Map());
}

void InferenceWorker::Carry(const ReclaimMemory&) {
  const Status reason(
      Code::kCancelled,
      StrCat(session_->text(), " receives a newer version; the controller looks for another source"));
  peer_source_->Feed(MemoryReclaimed{.reason = reason});
}

void InferenceWorker::Carry(const OpenGrants& action) {
  const auto complete = [this, update = action.update] {
    session_->loop().Post([this, update] {
      if (grants_ == nullptr) return;
      Feed(Arrived{update, grants_->bytes(), grants_->seconds(), grants_->sources()});
    });
  };
  if (plan_ == nullptr)
    return Feed(
        OpenFailed{action.update,
                   {Code::kInternal, "grants were asked for without a table; please report this as a bug"}});
  uint32_t refused = 0;
  ArrivalChecks checks{.checksums = session_->settings().checksum != 0};
  if (state_.compares) checks.compare_on = [this](const auto& task) { background_.Run(task); };
  auto opened =
      GrantSet::Open(session_->endpoint(), plan_, action.part, std::move(checks), complete, &refused);
  if (!opened.ok()) return Feed(OpenFailed{action.update, opened.status(), int64_t{refused}});
  grants_ = *opened;
  Feed(GrantsOpened{action.update, grants_->grants()});
}

void InferenceWorker::Carry(const RevokeGrants& action) {
  grants_->Revoke([this, update = action.update] {
    session_->loop().Post([this, update] { Feed(GrantsFenced{update}); });
  });
  WatchFence(action.update, grants_, Clock::now());
}

void InferenceWorker::Carry(const VerifyChecksums& action) {
  background_.Run([this, grants = grants_, update = action.update] {
    const Status status = grants->Verify();
    session_->loop().Post(
        [this, update, status, compared = grants->compared()] { Feed(Verified{update, status, compared}); });
  });
}

void InferenceWorker::Carry(const RunSwitch& action) {
  {
    const std::lock_guard lock(mutex_);
    shared_.to_switch = {
        .update = action.update, .version = state_.version, .memory = memory_, .call = options_.on_switch};
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

}  // namespace weightcast::worker
