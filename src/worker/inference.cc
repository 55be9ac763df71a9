#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"
#include "weightcast/worker.h"
#include "worker/background.h"
#include "worker/call_waiter.h"
#include "worker/commit_group.h"
#include "worker/digests.h"
#include "worker/inference_loop.h"
#include "worker/registration.h"
#include "worker/session.h"

namespace weightcast {
namespace worker {
namespace {

/// Of options with several groups.
Status CheckGrouped(const LandingOptions& options, const CommitGroup& group) {
  if (options.on_switch)
    return {Code::kInvalidArgument,
            "on_switch cannot be used with groups; leave on_switch out, and hand on each group after "
            "receive_group"};
  if (!group.model().empty())
    return {Code::kInvalidArgument,
            "a model of a commit group cannot be received in groups of tensors; leave groups out"};
  return Status::Ok();
}

/// What the user of an inference rank calls, and what others see of it.
class InferenceWorker final : public Inference {
 public:
  ~InferenceWorker() override { Close(); }

  Version version() const override { return Seen(&InferenceOutput::served); }
  EngineState state() const override { return Seen(&InferenceOutput::state); }
  Status last_error() const override { return Seen(&InferenceOutput::last_error); }
  std::vector<std::string> ConnectionMap() const override { return session_->ConnectionMap(); }

  Status Open(WorkerOptions options) {
    WC_ASSIGN_OR_RETURN(group_, CommitGroup::Join(options));
    interrupted_ = options.interrupted;
    Session::Handlers handlers;
    handlers.on_message = [this](protocol::ControllerMessage message) {
      loop_->OnMessage(std::move(message));
    };
    handlers.on_ended = [this](const Status& status) { loop_->OnEnded(status); };
    handlers.on_connected = [this](const Identity&) { loop_->receiver().OnConnected(); };
    handlers.on_disconnected = [this](const Identity& peer, const Status& status) {
      loop_->receiver().OnDisconnected(peer, status);
    };
    WC_ASSIGN_OR_RETURN(session_, Session::Open(options, protocol::Role::kInference, std::move(handlers)));
    loop_ = std::make_unique<InferenceLoop>(*session_, background_, group_.model());
    calls_ = std::make_unique<CallWaiter>(*session_, *loop_, interrupted_);
    collector_ = std::make_unique<trace::Collector>([this](auto& metrics) {
      auto labels = session_->labels();
      metrics.push_back(
          {"inference.version", static_cast<double>(version().number), labels, /*rises=*/false});
      labels.emplace_back("state", protocol::NameOf(state()));
      metrics.push_back({"inference.state", 1, std::move(labels), /*rises=*/false});
    });
    return session_->Begin();
  }

  void Close() override {
    if (session_ == nullptr) return;
    // Ends the call that another thread may be in.
    session_->loop().Post([this] { loop_->OnEnded(ClosedHere("this inference rank")); });
    if (const auto lock = calls_->Close()) Shut();
  }

  Status Register(Registration registration, LandingOptions options) override {
    WC_ASSIGN_OR_RETURN(const auto call, calls_->Enter());
    WC_RETURN_IF_ERROR(CheckPatterns(options.unwanted, "unwanted"));
    group_.Qualify(registration);
    group_.Qualify(options.unwanted);
    group_.Qualify(options.not_sent);
    for (auto& group : options.groups) group_.Qualify(group);
    WC_ASSIGN_OR_RETURN(std::vector<Shard> shards, ResolveShards(std::move(registration)));
    WC_RETURN_IF_ERROR(DeclareNotSent(options.not_sent, shards));
    return RegisterLocked(std::move(shards), std::move(options), Contents::kIntact);
  }

  Result<std::vector<TensorInfo>> Offered(TimePoint deadline) override {
    WC_RETURN_IF_ERROR(process_.Check());
    const std::lock_guard one(asks_);
    auto& output = loop_->output();
    output.Change([](InferenceOutput& told) { told.offered.reset(); });
    session_->loop().RunAndWait([this] { loop_->AskOffered(); });
    const Limits limits{.deadline = deadline, .interrupted = interrupted_, .patience = session_->patience()};
    std::optional<std::vector<TensorInfo>> offered;
    Status ended;
    const Woken woken = output.Wait(limits, [&](InferenceOutput& told) {
      offered = std::exchange(told.offered, std::nullopt);
      ended = told.ended;
      return offered || !ended.ok();
    });
    if (offered) return group_.OwnOf(std::move(*offered));
    if (!ended.ok()) return ended;
    if (woken == Woken::kInterrupted) return InterruptedCall("the wait for all trainers to register");
    if (woken == Woken::kAway) return limits.patience.absence->Told();
    return Status(Code::kTimedOut,
                  "not all trainers have registered within the timeout of this call; let those register that "
                  "`weightcast info --controller HOST:PORT` shows as missing, and call again");
  }

  Status Suspend(TimePoint deadline) override {
    WC_ASSIGN_OR_RETURN(const auto call, calls_->Enter());
    Reclaim("suspended");
    WC_RETURN_IF_ERROR(calls_->Run([this] { loop_->Dispatch(SuspendCalled{}); }, deadline).status);
    session_->loop().RunAndWait([this] {
      auto& [options, memory] = loop_->registered();
      if (memory == nullptr) return;
      asleep_ = {.shards = memory->shards(), .options = options, .memory = std::move(memory)};
      asleep_->writers = loop_->receiver().Drop();
      loop_->output().Change([](InferenceOutput& output) { output.memory.reset(); });
    });
    if (!asleep_ || asleep_->memory == nullptr) return Status::Ok();
    const Status closed =
        asleep_->memory->Close(std::min(deadline, Clock::now() + 2 * session_->settings().lease));
    bool kept = false;
    if (!closed.ok() && asleep_->memory->replaceable()) {  // The engine's own memory is free.
      session_->loop().RunAndWait([&] {
        kept = !loop_->writers().full();
        if (kept) loop_->writers().Keep(std::move(asleep_->memory), asleep_->writers);
      });
    }
    if (!closed.ok() && !kept) return StillWritten();
    asleep_->memory.reset();
    return Status::Ok();
  }

  Status Resume(Contents contents) override {
    WC_ASSIGN_OR_RETURN(const auto call, calls_->Enter());
    if (!asleep_) return {Code::kInvalidArgument, "this rank is not suspended; call suspend before resume"};
    if (asleep_->memory != nullptr) return StillWritten();
    return RegisterLocked(asleep_->shards, asleep_->options, contents);
  }

  Status Begin() override { return calls_->Call(BeginCalled{}, TimePoint::max()).status; }

  Result<Version> Receive(TimePoint deadline) override {
    if (const uint32_t parts = Seen(&InferenceOutput::parts); parts > 1)
      return Error(Code::kInvalidArgument, "the update comes in ", parts,
                   " groups of tensors; call receive_group for each");
    const AnswerCall answer = calls_->Call(ReceiveCalled{}, deadline);
    if (!answer.status.ok()) return answer.status;
    return answer.version;
  }

  Result<ReceivedGroup> ReceiveGroup(TimePoint deadline) override {
    const AnswerCall answer = calls_->Call(ReceiveCalled{}, deadline);
    if (!answer.status.ok()) return answer.status;
    return ReceivedGroup{.version = answer.version,
                         .group = answer.part,
                         .last = answer.part + 1 == Seen(&InferenceOutput::parts)};
  }

  Status Commit() override { return calls_->Call(CommitCalled{}, kNever).status; }

  Status Served(TimePoint deadline) override {
    return calls_->Call(FinishCalled{.commits = false}, deadline).status;
  }

  Status Finish(TimePoint deadline) override { return calls_->Call(FinishCalled{}, deadline).status; }

  Status Abort() override {
    return calls_->Call(AbortCalled{}, Clock::now() + 2 * session_->settings().lease).status;
  }

  Result<Version> Wait(Version newer_than, TimePoint deadline) override {
    if (Seen(&InferenceOutput::needs_phases))
      return Status(
          Code::kInvalidArgument,
          "wait was called with landing 'loader', but register was given no on_switch; give register "
          "an on_switch, or call begin, receive and finish");
    while (true) {
      const Version served = version();
      if (served.number >= 0 && Newer(served, newer_than).value_or(true)) return served;
      const AnswerCall answer = calls_->Call(WaitCalled{}, deadline);
      if (!answer.status.ok()) return answer.status;
    }
  }

  /// During a call: bytes land in live tensors, or are copied there, only after a call of the user.
  Result<Digests> Digest() override {
    WC_ASSIGN_OR_RETURN(const auto call, calls_->Enter());
    Status readable;
    std::shared_ptr<const LandingMemory> memory;
    session_->loop().RunAndWait([&] {
      readable = CheckReadable(loop_->state());
      memory = loop_->registered().memory;
    });
    WC_RETURN_IF_ERROR(readable);
    if (memory->parts() > 1)
      return Status(Code::kInvalidArgument,
                    "the registered memory may hold several groups one after the other, so it has no digest; "
                    "leave groups out to have one");
    if (memory->Has(LandingMode::kLoader))
      return Status(
          Code::kInvalidArgument,
          "with landing 'loader' the registered memory is not the live tensors, so it has no digest; "
          "register with landing 'in_place' or 'shadow' to have one");
    return DigestsOf(memory->shards(), /*reader=*/nullptr, memory->devices(), interrupted_);
  }

  std::vector<std::string> Describe() const override {
    const auto memory = Seen(&InferenceOutput::memory);
    if (memory == nullptr) return {};
    std::vector<std::string> lines = memory->Describe();
    for (std::string& line : lines) line = group_.OwnName(line);  // A line begins with a tensor's name.
    return lines;
  }

 private:
  /// What a rank that sleeps will register again.
  struct Asleep {
    std::vector<Shard> shards;
    LandingOptions options;
    std::shared_ptr<LandingMemory> memory;  ///< Until nobody can write there any more.
    std::string writers = {};               ///< Who may still, for messages.
  };
  template <typename Value>
  Value Seen(Value InferenceOutput::* member) const {
    return loop_->output().Read([member](const InferenceOutput& output) { return output.*member; });
  }

  [[nodiscard]] Status StillWritten() const {
    return Error(Code::kFenced,
                 "the suspension is not complete, so keep this rank's memory: ", asleep_->writers,
                 ", stopped or unreachable, may still write to it; end that process or let it continue "
                 "(kill -CONT), and call suspend again");
  }

  // --- Beginning and end --------------------------------------------------------------------------------

  void Shut() {
    collector_.reset();
    const TimePoint deadline = Clock::now() + 2 * session_->settings().lease;
    std::unique_ptr<Sender> sender;
    session_->loop().RunAndWait([&] { sender = loop_->peer_source().End(); });
    sender.reset();  // Waits, bounded, until nobody reads the memory.
    loop_->output().Wait({.deadline = deadline}, [](const InferenceOutput& output) { return output.idle; });
    session_->Leave();
    background_.Join();
    const std::string writers = loop_->receiver().Drop();
    auto memory = std::move(loop_->registered().memory);
    const bool spare = memory != nullptr && memory->replaceable();
    if (spare) loop_->writers().Keep(std::move(memory), writers);
    if (memory != nullptr && !memory->Close(deadline).ok()) {
      WC_LOG(kWarning, session_->text(), ": ", writers,
             ", stopped or unreachable, may still write to the registered ",
             "memory; do not use that memory for anything else until that process has ended");
    }
    memory.reset();
    loop_->writers().Abandon(deadline);
    session_->CloseEndpoint();
  }

  // --- The user's calls -------------------------------------------------------------------------------

  /// The registered memory is given to nobody any more; waits, bounded, until nobody reads it. During a call.
  void Reclaim(std::string_view why) {
    const TimePoint deadline = Clock::now() + 2 * session_->settings().lease;
    session_->loop().RunAndWait([&] {
      const Status reason =
          Error(Code::kCancelled, "its memory was ", why,
                " while it sent the version on; if that ends the update, let trainers publish again");
      loop_->peer_source().Dispatch(MemoryReclaimed{.reason = reason, .leaves = true});
    });
    loop_->output().Wait({.deadline = deadline}, [](const InferenceOutput& output) { return !output.lent; });
  }

  /// `contents`: what is at addresses that were registered before.
  Status RegisterLocked(std::vector<Shard> shards, LandingOptions options, Contents contents) {
    WC_ASSIGN_OR_RETURN(auto parts, PartsOf(options.groups, shards));
    if (parts.count > 1) WC_RETURN_IF_ERROR(CheckGrouped(options, group_));
    WC_ASSIGN_OR_RETURN(auto memory, LandingMemory::Register(session_->endpoint(), std::move(shards),
                                                             options.landing, parts, session_->settings()));
    Reclaim("registered again");
    // Only what lands in place, and groups, of which the first is live before the last has come, need a pause
    // before the grant and are lost when the update fails.
    const bool pauses = memory->Has(LandingMode::kInPlace) || memory->parts() > 1;
    const auto mode = pauses ? protocol::Landing::kInPlace : protocol::Landing::kShadow;
    const bool runs_switch = options.on_switch || memory->Has(LandingMode::kShadow);
    const bool needs_phases = memory->Has(LandingMode::kLoader) && !options.on_switch && memory->parts() == 1;
    // `memory` takes the old registration out of the loop, or the new one where that was refused; it ends
    // here.
    const auto task = [&] {
      auto& registered = loop_->registered();
      const bool same = contents == Contents::kIntact &&
                        (asleep_                        ? memory->SameMemory(asleep_->shards)
                         : registered.memory != nullptr ? memory->SameMemory(registered.memory->shards())
                                                        : false);
      std::swap(registered.memory, memory);
      std::swap(registered.options, options);
      loop_->Dispatch(RegisterCalled{.landing = mode,
                                     .same_memory = same,
                                     .shares = registered.options.shares,
                                     .runs_switch = runs_switch,
                                     .parts = registered.memory->parts()});
      const bool taken = loop_->output().Change([&](InferenceOutput& output) {
        if (!output.answer->status.ok()) return false;
        output.memory = registered.memory;
        output.needs_phases = needs_phases;
        output.parts = registered.memory->parts();
        return true;
      });
      if (!taken) {
        std::swap(registered.options, options);
        return std::swap(registered.memory, memory);
      }
      asleep_.reset();
      loop_->receiver().Drop();  // It keeps the memory of before.
    };
    return calls_->Run(task, TimePoint::max()).status;
  }

  Interrupted interrupted_;
  const OwnProcess process_;
  std::mutex asks_;  ///< Held during Offered.
  CommitGroup group_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<InferenceLoop> loop_;
  std::unique_ptr<CallWaiter> calls_;
  std::optional<Asleep> asleep_;  ///< During a call.
  std::unique_ptr<trace::Collector> collector_;
  Background background_{"wc-prepare"};
};

}  // namespace
}  // namespace worker

Result<std::unique_ptr<Inference>> Inference::Connect(WorkerOptions options) {
  auto inference = std::make_unique<worker::InferenceWorker>();
  WC_RETURN_IF_ERROR(inference->Open(std::move(options)));
  return std::unique_ptr<Inference>(std::move(inference));
}

}  // namespace weightcast
