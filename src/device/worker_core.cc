#include "device/worker_core.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/futex.h"
#include "base/log.h"
#include "base/pause.h"

namespace weightcast::device {
namespace {

/// The next order mostly comes soon after the last, and a sleep costs 20 to 40 us.
constexpr Duration kSpin = std::chrono::microseconds(200);
/// What takes longer than a spin is looked at this often.
constexpr Duration kLook = std::chrono::microseconds(50);
constexpr uint32_t kLooksPerYield = 16;
/// A device that has not ended its copies by then will not: what they use is left to the process's end.
constexpr Duration kLongestEnd = std::chrono::seconds(10);

}  // namespace

/// When there was something last.
class Worker::Core::Patience {
 public:
  /// False: nothing has come for the time of a spin.
  bool GoOn(Work::State state) {
    const TimePoint now = Clock::now();
    if (state == Work::State::kMoved) last_ = now;
    if (now - last_ >= kSpin) return false;
    if (++looks_ % kLooksPerYield == 0) {
      sched_yield();
    } else {
      CpuPause();
    }
    return true;
  }

 private:
  TimePoint last_ = Clock::now();
  uint32_t looks_ = 0;
};

void Worker::Core::Push(TaskPtr task) {
  tasks_.Push(std::move(task));
  Wake();
}

void Worker::Core::Wake() {
  // Sequentially consistent on both sides: either the sleeper sees the count or this sees the sleeper.
  wakes_.fetch_add(1, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst)) FutexWakeAll(wakes_);
}

void Worker::Core::Stop() {
  stop_.store(true);
  Wake();
}

void Worker::Core::AddSignal(const std::shared_ptr<WakeSignal>& signal) {
  const std::lock_guard lock(signals_mutex_);
  signals_.push_back(signal);
}

void Worker::Core::RemoveSignal(const std::shared_ptr<WakeSignal>& signal) {
  const std::lock_guard lock(signals_mutex_);
  std::erase(signals_, signal);
}

void Worker::Core::RingAll() {
  const std::lock_guard lock(signals_mutex_);
  for (const auto& signal : signals_) signal->Ring();
}

Work::State Worker::Core::StepWorks() {
  auto all = Work::State::kIdle;
  for (size_t i = 0; i < works_.size();) {
    const Work::State state = works_[i]->Step();
    if (state == Work::State::kOver) {
      works_[i] = std::move(works_.back());
      works_.pop_back();
      all = Work::State::kMoved;
      continue;
    }
    all = std::max(all, state);
    ++i;
  }
  return all;
}

bool Worker::Core::CopiesGoOnAlone() const {
  return std::ranges::any_of(works_, [](const auto& work) { return work->GoesOnAlone(); });
}

void Worker::Core::RunAfterCopies(std::function<void()> task) {
  if (postponed_.empty() && !CopiesGoOnAlone()) return task();
  postponed_.push_back(std::move(task));
}

Work::State Worker::Core::Turn() {
  const bool ran = tasks_.RunAll() > 0;
  const Work::State state = StepWorks();
  if (!postponed_.empty() && !CopiesGoOnAlone())
    for (const auto& task : std::exchange(postponed_, {})) task();
  if (!ran && state != Work::State::kMoved) return state;
  RingAll();
  return Work::State::kMoved;
}

void Worker::Core::Sleep(uint32_t seen, Work::State state) {
  asleep_.store(true, std::memory_order_seq_cst);
  const TimePoint until = state == Work::State::kWaiting ? Clock::now() + kLook : kNever;
  FutexWait(wakes_, seen, until);
  asleep_.store(false, std::memory_order_relaxed);
}

void Worker::Core::Main() {
  const ContextScope scope(health_->context());
  if (!scope.status().ok()) health_->Lose(scope.status());
  Patience patience;
  while (true) {
    const uint32_t seen = wakes_.load(std::memory_order_seq_cst);  // Before the looks at what it announces.
    if (stop_.load()) break;
    const Work::State state = Turn();
    if (!patience.GoOn(state)) Sleep(seen, state);
  }
  Finish();
}

void Worker::Core::Finish() {
  const TimePoint limit = Clock::now() + kLongestEnd;
  auto state = Turn();
  while ((state == Work::State::kMoved || state == Work::State::kWaiting) && Clock::now() < limit) {
    sched_yield();
    state = Turn();
  }
  if (state == Work::State::kWaiting) {
    WC_LOG(kWarning, "device ", health_->context().ordinal(), " has not ended its work within ",
           Seconds(kLongestEnd),
           " s; what it uses is kept until the process ends: see with nvidia-smi what runs there");
  }
}

}  // namespace weightcast::device
