#include "worker/call_waiter.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"

namespace weightcast::worker {

Result<CallWaiter::Lock> CallWaiter::Enter() {
  WC_RETURN_IF_ERROR(process_.Check());
  Lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock())
    return Status(Code::kInvalidArgument,
                  "another thread is inside a call of this inference rank; use one thread at a time");
  if (closed_) return ClosedHere("this inference rank");
  return lock;
}

CallWaiter::Lock CallWaiter::Close() {
  Lock lock(mutex_);
  return std::exchange(closed_, true) ? Lock() : std::move(lock);
}

AnswerCall CallWaiter::Call(const InferenceEvent& event, TimePoint deadline) {
  const auto lock = Enter();
  if (!lock.ok()) return {.status = lock.status(), .version = {}};
  AnswerCall answer = Run([&] { loop_.Dispatch(event); }, deadline);
  if (!answer.status.ok()) answer.status = WithLostDevice(std::move(answer.status));
  return answer;
}

/// What a lost device of this rank causes looks like a failure of its peers, who may be the first to speak of
/// it.
Status CallWaiter::WithLostDevice(Status status) {
  std::shared_ptr<const LandingMemory> memory;
  session_.loop().RunAndWait([&] { memory = loop_.registered().memory; });
  if (memory == nullptr) return status;
  const Status lost = memory->devices().FailureOf(memory->shards());
  if (lost.ok() || status.message().find(lost.message()) != std::string::npos) return status;
  return Error(status.code(), status.message(), "; ", lost.message());
}

AnswerCall CallWaiter::Run(const std::function<void()>& task, TimePoint deadline) {
  loop_.output().Change([](InferenceOutput& output) { output.answer.reset(); });
  session_.loop().RunAndWait(task);
  const auto again = std::max<Duration>(2 * session_.settings().lease, std::chrono::seconds(1));
  Limits limits{.deadline = deadline, .interrupted = interrupted_, .patience = session_.patience()};
  bool interrupted = false;
  while (true) {
    std::optional<AnswerCall> answer;
    std::optional<InferenceOutput::Switch> to_switch;
    const Woken woken = loop_.output().Wait(limits, [&](InferenceOutput& output) {
      answer = output.answer;
      to_switch = std::exchange(output.to_switch, std::nullopt);
      return answer || to_switch;
    });
    if (to_switch) {
      session_.loop().Post([this, run = Switch(*to_switch)] { loop_.Dispatch(run); });
    } else if (answer) {
      return *answer;
    } else if (woken == Woken::kAway) {
      limits.start = Clock::now();
      if (const Status away = limits.patience.absence->Told(); !away.ok())
        session_.loop().Post([this, away] { loop_.Dispatch(CallExpired{.away = away}); });
    } else {
      // The machine decides whether the call may end now; it is asked again while it may not.
      if (woken == Woken::kInterrupted) {
        interrupted = true;
        limits.interrupted = {};  // Once is enough: the answer may have to wait until nobody can write.
      }
      session_.loop().Post([this, interrupted] { loop_.Dispatch(CallExpired{interrupted}); });
      limits.deadline = Clock::now() + again;
    }
  }
}

/// On the user's thread.
SwitchRun CallWaiter::Switch(const InferenceOutput::Switch& task) const {
  SwitchRun run{.update = task.update};
  if (task.call) run.status = task.call(task.version);
  if (run.status.ok()) {
    run.changed = true;
    run.status = task.memory->CopyToLive(session_.settings().compare != 0);
  }
  if (!run.status.ok())
    run.status = Error(run.status.code(), session_.text(), " could not switch: ", run.status.message());
  return run;
}

}  // namespace weightcast::worker
