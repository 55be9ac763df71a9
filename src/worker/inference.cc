#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"
#include "worker/digests.h"
#include "worker/inference_worker.h"
#include "worker/registration.h"

// The user's side of an inference rank: calls, and what others see.
namespace weightcast {
namespace worker {
namespace {

Status Closed() { return ClosedHere("this inference rank"); }

}  // namespace

// --- The end ------------------------------------------------------------------------------------------

void InferenceWorker::Close() {
  if (session_ == nullptr) return;
  // Ends the call that another thread may be in.
  session_->loop().Post([this] { OnSessionEnded(Closed()); });
  const std::lock_guard lock(calls_);
  if (!std::exchange(closed_, true)) Shut();
}

void InferenceWorker::Shut() {
  collector_.reset();
  const TimePoint deadline = Clock::now() + 2 * session_->settings().lease;
  std::unique_ptr<Sender> sender;
  session_->loop().RunAndWait([&] { sender = peer_source_->End(); });
  sender.reset();  // Waits, bounded, until nobody reads the memory.
  {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return shared_.idle; });
  }
  session_->Leave();
  background_.Join();
  peer_source_.reset();
  grants_.reset();
  plan_.reset();
  const bool spare = memory_ != nullptr && memory_->replaceable();
  if (spare) quarantine_.Keep(std::move(memory_), "a stopped peer");
  if (memory_ != nullptr && !memory_->Close(deadline).ok()) {
    WC_LOG(kWarning, session_->text(), ": a stopped peer may still write to the registered memory; ",
           "do not use it for anything else until that peer has ended");
  }
  memory_.reset();
  quarantine_.Abandon(deadline);
  session_->CloseEndpoint();
}

// --- The user's calls -------------------------------------------------------------------------------

/// Whether a call that has, or has not, got the lock of `calls_` may go on.
Status InferenceWorker::CheckCall(const std::unique_lock<std::mutex>& call) const {
  WC_RETURN_IF_ERROR(process_.Check());
  if (!call.owns_lock())
    return {Code::kInvalidArgument,
            "another thread is inside a call of this inference rank; use one thread at a time"};
  return closed_ ? Closed() : Status::Ok();
}

AnswerCall InferenceWorker::Call(const InferenceEvent& event, TimePoint deadline) {
  const std::unique_lock call(calls_, std::try_to_lock);
  if (Status status = CheckCall(call); !status.ok()) return {.status = std::move(status), .version = {}};
  AnswerCall answer = CallLocked([&] { Feed(event); }, deadline);
  if (!answer.status.ok()) answer.status = WithLostDevice(std::move(answer.status));
  return answer;
}

/// What a lost device of this rank causes looks like a failure of its peers, who may be the first to speak of
/// it.
Status InferenceWorker::WithLostDevice(Status status) {
  std::shared_ptr<const LandingMemory> memory;
  session_->loop().RunAndWait([&] { memory = memory_; });
  if (memory == nullptr) return status;
  const Status lost = memory->devices().FailureOf(memory->shards());
  if (lost.ok() || status.message().find(lost.message()) != std::string::npos) return status;
  return {status.code(), StrCat(status.message(), "; ", lost.message())};
}

AnswerCall InferenceWorker::CallLocked(const std::function<void()>& task, TimePoint deadline) {
  {
    const std::lock_guard lock(mutex_);
    shared_.answer.reset();
  }
  session_->loop().RunAndWait(task);
  return WaitForAnswer(deadline);
}

AnswerCall InferenceWorker::WaitForAnswer(TimePoint deadline) {
  const auto again = std::max<Duration>(2 * session_->settings().lease, std::chrono::seconds(1));
  Limits limits{.deadline = deadline, .interrupted = interrupted_, .patience = session_->patience()};
  bool interrupted = false;
  std::unique_lock lock(mutex_);
  while (true) {
    const auto awake = [&] { return shared_.answer || shared_.to_switch; };
    const Woken woken = WaitUntil(lock, changed_, limits, awake);
    if (shared_.to_switch) {
      const auto task = *std::exchange(shared_.to_switch, std::nullopt);
      lock.unlock();
      session_->loop().Post([this, run = Switch(task)] { Feed(run); });
      lock.lock();
    } else if (woken == Woken::kDone) {
      return *shared_.answer;
    } else if (woken == Woken::kAway) {
      limits.start = Clock::now();
      if (const Status away = limits.patience.absence->Told(); !away.ok())
        session_->loop().Post([this, away] { Feed(CallExpired{.away = away}); });
    } else {
      // The machine decides whether the call may end now; it is asked again while it may not.
      if (woken == Woken::kInterrupted) {
        interrupted = true;
        limits.interrupted = {};  // Once is enough: the answer may have to wait until nobody can write.
      }
      session_->loop().Post([this, interrupted] { Feed(CallExpired{interrupted}); });
      limits.deadline = Clock::now() + again;
    }
  }
}

/// On the user's thread.
SwitchRun InferenceWorker::Switch(const Shared::Switch& task) const {
  SwitchRun run{.update = task.update};
  if (task.call) run.status = task.call(task.version);
  if (run.status.ok()) {
    run.changed = true;
    if (session_->settings().compare != 0) {
      run.status = task.memory->CopyAndCompare();
    } else {
      run.status = task.memory->CopyToLive();
    }
  }
  if (!run.status.ok())
    run.status = {run.status.code(), StrCat(session_->text(), " could not switch: ", run.status.message())};
  return run;
}

/// The registered memory is given to nobody any more; waits, bounded, until nobody reads it. Under `calls_`.
void InferenceWorker::Reclaim(std::string_view why) {
  const TimePoint deadline = Clock::now() + 2 * session_->settings().lease;
  session_->loop().RunAndWait([&] {
    const Status reason(Code::kCancelled,
                        StrCat(session_->text(), " ", why, "; the controller looks for another source"));
    peer_source_->Feed(MemoryReclaimed{.reason = reason, .leaves = true});
  });
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return !shared_.lent; });
}

Status InferenceWorker::Register(Registration registration, LandingOptions options) {
  const std::unique_lock call(calls_, std::try_to_lock);
  WC_RETURN_IF_ERROR(CheckCall(call));
  WC_RETURN_IF_ERROR(CheckPatterns(options.unwanted, "unwanted"));
  group_.Qualify(registration);
  group_.Qualify(options.unwanted);
  group_.Qualify(options.not_sent);
  for (auto& group : options.groups) group_.Qualify(group);
  WC_ASSIGN_OR_RETURN(std::vector<Shard> shards, ResolveShards(std::move(registration)));
  WC_RETURN_IF_ERROR(DeclareNotSent(options.not_sent, shards));
  return RegisterLocked(std::move(shards), std::move(options), Contents::kIntact);
}

/// Of options with several groups.
Status InferenceWorker::CheckGrouped(const LandingOptions& options) const {
  if (options.on_switch)
    return {Code::kInvalidArgument,
            "on_switch cannot be used with groups; leave it out, and hand on each group after ReceiveGroup"};
  if (!group_.model().empty())
    return {Code::kInvalidArgument,
            "a model of a commit group cannot be received in groups of tensors; set groups to none"};
  return Status::Ok();
}

/// `contents`: what is at addresses that were registered before.
Status InferenceWorker::RegisterLocked(std::vector<Shard> shards, LandingOptions options, Contents contents) {
  WC_ASSIGN_OR_RETURN(auto parts, PartsOf(options.groups, shards));
  if (parts.count > 1) WC_RETURN_IF_ERROR(CheckGrouped(options));
  WC_ASSIGN_OR_RETURN(auto memory, LandingMemory::Register(session_->endpoint(), std::move(shards),
                                                           options.landing, parts, session_->settings()));
  Reclaim("registered again");
  // Only what lands in place, and groups, of which the first is live before the last has come, need a pause
  // before the grant and are lost when the update fails.
  const bool pauses = memory->Has(LandingMode::kInPlace) || memory->parts() > 1;
  const auto mode = pauses ? protocol::Landing::kInPlace : protocol::Landing::kShadow;
  const bool runs_switch = options.on_switch || memory->Has(LandingMode::kShadow);
  const bool needs_phases = memory->Has(LandingMode::kLoader) && !options.on_switch && memory->parts() == 1;
  // `memory` takes the old registration out of the loop, or the new one where that was refused; it ends here.
  const auto task = [&] {
    const bool same =
        contents == Contents::kIntact && (asleep_              ? memory->SameMemory(asleep_->shards)
                                          : memory_ != nullptr ? memory->SameMemory(memory_->shards())
                                                               : false);
    std::swap(memory_, memory);
    std::swap(options_, options);
    Feed(RegisterCalled{.landing = mode,
                        .same_memory = same,
                        .shares = options_.shares,
                        .runs_switch = runs_switch,
                        .parts = memory_->parts()});
    const std::lock_guard lock(mutex_);
    if (!shared_.answer->status.ok()) {
      std::swap(options_, options);
      return std::swap(memory_, memory);
    }
    shared_.memory = memory_;
    shared_.needs_phases = needs_phases;
    shared_.parts = memory_->parts();
    asleep_.reset();
    plan_.reset();
    grants_.reset();  // They keep the memory of before.
  };
  return CallLocked(task, TimePoint::max()).status;
}

Result<std::vector<TensorInfo>> InferenceWorker::Offered(TimePoint deadline) {
  WC_RETURN_IF_ERROR(process_.Check());
  const std::lock_guard one(asks_);
  {
    const std::lock_guard lock(mutex_);
    shared_.offered.reset();
  }
  session_->loop().RunAndWait([this] {
    asking_ = true;
    session_->client().Send(protocol::AskOffered{});
  });
  const Limits limits{.deadline = deadline, .interrupted = interrupted_, .patience = session_->patience()};
  std::unique_lock lock(mutex_);
  const auto awake = [&] { return shared_.offered || !shared_.ended.ok(); };
  const Woken woken = WaitUntil(lock, changed_, limits, awake);
  if (shared_.offered) return group_.OwnOf(*std::exchange(shared_.offered, std::nullopt));
  if (!shared_.ended.ok()) return shared_.ended;
  if (woken == Woken::kInterrupted) return InterruptedCall("the wait for all trainers to register");
  if (woken == Woken::kAway) return limits.patience.absence->Told();
  return Status(Code::kTimedOut,
                "not all trainers have registered within the timeout of this call; weightcast info shows who "
                "is missing");
}

// --- Sleep --------------------------------------------------------------------------------------------

Status InferenceWorker::Suspend(TimePoint deadline) {
  const std::unique_lock call(calls_, std::try_to_lock);
  WC_RETURN_IF_ERROR(CheckCall(call));
  Reclaim("sleeps");
  WC_RETURN_IF_ERROR(CallLocked([this] { Feed(SuspendCalled{}); }, deadline).status);
  session_->loop().RunAndWait([this] {
    if (memory_ == nullptr) return;
    asleep_ = {.shards = memory_->shards(), .options = options_, .memory = std::move(memory_)};
    plan_.reset();
    grants_.reset();
    const std::lock_guard lock(mutex_);
    shared_.memory.reset();
  });
  if (!asleep_ || asleep_->memory == nullptr) return Status::Ok();
  const Status closed =
      asleep_->memory->Close(std::min(deadline, Clock::now() + 2 * session_->settings().lease));
  bool kept = false;
  if (!closed.ok() && asleep_->memory->replaceable()) {  // The engine's own memory is free.
    session_->loop().RunAndWait([&] {
      kept = !quarantine_.full();
      if (!kept) return;
      quarantine_.Keep(std::move(asleep_->memory), "a stopped peer");
      WatchQuarantine();
    });
  }
  if (!closed.ok() && !kept) {
    return {Code::kFenced,
            StrCat("the registered memory cannot be released yet; do not free it, and call suspend again: ",
                   closed.message())};
  }
  asleep_->memory.reset();
  return Status::Ok();
}

Status InferenceWorker::Resume(Contents contents) {
  const std::unique_lock call(calls_, std::try_to_lock);
  WC_RETURN_IF_ERROR(CheckCall(call));
  if (!asleep_) return {Code::kInvalidArgument, "this rank is not suspended; call suspend before resume"};
  if (asleep_->memory != nullptr)
    return {Code::kFenced,
            "the suspension is not complete: a peer that is stopped or unreachable may still write here; end "
            "that process or let it continue, and call suspend again"};
  return RegisterLocked(asleep_->shards, asleep_->options, contents);
}

// --- The phases ---------------------------------------------------------------------------------------

Status InferenceWorker::Begin() { return Call(BeginCalled{}, TimePoint::max()).status; }

Result<Version> InferenceWorker::Receive(TimePoint deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (shared_.parts > 1)
      return Status(Code::kInvalidArgument,
                    StrCat("the update comes in ", shared_.parts, " groups: call ReceiveGroup for each"));
  }
  const AnswerCall answer = Call(ReceiveCalled{}, deadline);
  if (!answer.status.ok()) return answer.status;
  return answer.version;
}

Result<ReceivedGroup> InferenceWorker::ReceiveGroup(TimePoint deadline) {
  const AnswerCall answer = Call(ReceiveCalled{}, deadline);
  if (!answer.status.ok()) return answer.status;
  const std::lock_guard lock(mutex_);
  return ReceivedGroup{
      .version = answer.version, .group = answer.part, .last = answer.part + 1 == shared_.parts};
}

Status InferenceWorker::Commit() { return Call(CommitCalled{}, kNever).status; }

Status InferenceWorker::Served(TimePoint deadline) {
  return Call(FinishCalled{.commits = false}, deadline).status;
}

Status InferenceWorker::Finish(TimePoint deadline) { return Call(FinishCalled{}, deadline).status; }

Status InferenceWorker::Abort() {
  return Call(AbortCalled{}, Clock::now() + 2 * session_->settings().lease).status;
}

Result<Version> InferenceWorker::Wait(Version newer_than, TimePoint deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (shared_.needs_phases)
      return Status(Code::kInvalidArgument,
                    "Wait was called with loader landing, but Register was given no on_switch; give it one, "
                    "or call Begin, Receive and Finish");
  }
  while (true) {
    const Version served = version();
    if (served.number >= 0 && Newer(served, newer_than).value_or(true)) return served;
    const AnswerCall answer = Call(WaitCalled{}, deadline);
    if (!answer.status.ok()) return answer.status;
  }
}

/// Under `calls_`: bytes land in live tensors, or are copied there, only after a call of the user.
Result<Digests> InferenceWorker::Digest() {
  const std::unique_lock call(calls_, std::try_to_lock);
  WC_RETURN_IF_ERROR(CheckCall(call));
  Status readable;
  std::shared_ptr<const LandingMemory> memory;
  session_->loop().RunAndWait([&] {
    readable = CheckReadable(state_);
    memory = memory_;
  });
  WC_RETURN_IF_ERROR(readable);
  if (memory->parts() > 1)
    return Status(Code::kInvalidArgument,
                  "the registered memory may hold several groups one after the other, so it has no digest; "
                  "set groups to none for that");
  if (memory->Has(LandingMode::kLoader))
    return Status(Code::kInvalidArgument,
                  "the registered memory is a loader's, not the live tensors, so it has no digest; use "
                  "another landing for that");
  return DigestsOf(memory->shards(), /*reader=*/nullptr, memory->devices(), interrupted_);
}

// --- What others see --------------------------------------------------------------------------------

Version InferenceWorker::version() const {
  const std::lock_guard lock(mutex_);
  return shared_.served;
}

EngineState InferenceWorker::state() const {
  const std::lock_guard lock(mutex_);
  return shared_.state;
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
  if (memory == nullptr) return {};
  std::vector<std::string> lines = memory->Describe();
  for (std::string& line : lines) line = group_.OwnName(line);  // A line begins with a tensor's name.
  return lines;
}

std::vector<std::string> InferenceWorker::ConnectionMap() const { return session_->ConnectionMap(); }

}  // namespace worker

Result<std::unique_ptr<Inference>> Inference::Connect(WorkerOptions options) {
  auto inference = std::make_unique<worker::InferenceWorker>();
  WC_RETURN_IF_ERROR(inference->Open(std::move(options)));
  return std::unique_ptr<Inference>(std::move(inference));
}

}  // namespace weightcast
