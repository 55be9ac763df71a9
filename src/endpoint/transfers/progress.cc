#include "endpoint/transfers/progress.h"

#include <poll.h>

#include <array>
#include <utility>

#include "base/thread.h"

namespace weightcast::endpoint {
namespace {

constexpr uint64_t kWakeKey = 0;
/// Sockets and timers are looked at this often by one who drives without a pause.
constexpr Duration kSocketInterval = std::chrono::microseconds(100);
/// A sleeper looks again this often whether anyone drives: the thread may be held up in a callback.
constexpr Duration kSleepSlice = std::chrono::milliseconds(100);

/// A thread that was turned away looks again after this. A caller who has what it waited for is mostly back
/// at once, and does not wake it each time only to turn it away again.
constexpr Duration kParkSlice = std::chrono::microseconds(500);

}  // namespace

bool Progress::SocketTurn::Due() {
  const TimePoint now = Clock::now();
  if (now - last_ < kSocketInterval) return false;
  last_ = now;
  return true;
}

Result<std::unique_ptr<Progress>> Progress::Create(Work& work) {
  std::unique_ptr<Progress> progress(new Progress(work));
  WC_ASSIGN_OR_RETURN(progress->poller_, Poller::Create());
  WC_ASSIGN_OR_RETURN(progress->wake_, WakeFd::Create());
  WC_RETURN_IF_ERROR(progress->poller_.Add(progress->wake_.fd(), EPOLLIN, kWakeKey));
  return progress;
}

Status Progress::Start(std::shared_ptr<void> keep_alive) {
  WC_ASSIGN_OR_RETURN(thread_,
                      StartThread("wc-progress", [this, keep_alive = std::move(keep_alive)] { Main(); }));
  return Status::Ok();
}

bool Progress::Stop() {
  if (!thread_.joinable()) return false;
  stop_.store(true);
  wake_.Wake();
  if (std::this_thread::get_id() == thread_.get_id()) {
    thread_.detach();
    return false;
  }
  thread_.join();
  callbacks_.RunAll();
  return true;
}

bool Progress::StepOnce(bool sockets) noexcept {
  const bool ran = tasks_.RunAll() > 0;
  return work_.Step(sockets) || ran;
}

void Progress::Submit(TaskPtr task, bool now) {
  tasks_.Push(std::move(task));
  if (now) {
    // The holder looks at the queue once more after it has let go. Who comes with a task seldom comes back to
    // drive: where watching costs nothing the thread had better do it.
    if (lock_.TryTake()) StepAndLeave(/*for_long=*/!work_.ArmingIsCostly());
  } else if (!lock_.held()) {
    wake_.Wake();
  }
}

void Progress::WatchAgain() {
  if (parked_.load(std::memory_order_seq_cst)) wake_.Wake();
}

void Progress::Call(std::function<void()> function) {
  const auto done = std::make_shared<Flag>();
  Submit(MakeTask([function = std::move(function), done] {
           function();
           done->Set(1);
         }),
         /*now=*/true);
  WaitFor(*done, 1, kNever);
}

void Progress::Later(std::function<void()> callback) {
  const bool first = callbacks_.Push(MakeTask(std::move(callback)));
  if (first && !lock_.by_thread()) wake_.Wake();
}

void Progress::Step() {
  if (lock_.TryTake()) StepAndLeave();
}

bool Progress::WaitFor(Flag& flag, uint32_t value, TimePoint deadline) {
  while (flag.value() < value) {
    // A caller who waits had better drive itself: woken by the thread, and on the thread's core, it would
    // lose two context switches to each of its transfers for as long as something moves.
    if (lock_.TryTake() || lock_.TakeFromThread()) {
      Drive(flag, value, deadline);
      if (flag.value() >= value) break;
    }
    const TimePoint now = Clock::now();
    if (now >= deadline) return false;
    const TimePoint slice = now + kSleepSlice;
    flag.SleepUntil(value, std::min(deadline, slice));
  }
  return true;
}

bool Progress::Arm() {
  if (std::exchange(masked_, false)) work_.Mask(false);
  armed_ = true;
  return work_.Arm();
}

void Progress::Disarm() {
  if (std::exchange(armed_, false)) work_.Disarm();
}

/// Until the flag is set, the deadline has passed or nothing moves.
void Progress::Drive(const Flag& flag, uint32_t value, TimePoint deadline) {
  Disarm();
  // A parked thread watches nothing that could wake it.
  if (!parked_.load(std::memory_order_relaxed) && !std::exchange(masked_, true)) work_.Mask(true);
  const TimePoint begun = Clock::now();
  returns_.OnBegin(begun);
  spin_.Begin(begun);
  bool moved = false;
  while (flag.value() < value && spin_.GoOn(moved)) {
    const bool look = sockets_.Due();
    if (look && Clock::now() >= deadline) break;
    moved = StepOnce(look);
  }
  const TimePoint end = Clock::now();
  const bool for_long = flag.value() < value || end - begun > kParkSlice;
  returns_.OnEnd(end, for_long);
  Leave(for_long);
}

/// When somebody who does others' work before it goes had better go all the same: they may leave more than
/// one can do.
class Progress::Patience {
 public:
  bool Over() {
    const TimePoint now = Clock::now();
    if (limit_ == TimePoint{}) limit_ = now + kParkSlice;
    return now > limit_;
  }

 private:
  TimePoint limit_{};
};

/// A caller lets go: from here on the thread watches, or comes to look soon.
void Progress::Leave(bool for_long) {
  Patience patience;
  do {
    bool wake = false;
    if (parked_.load(std::memory_order_seq_cst) && work_.ArmingIsCostly()) {
      // It looks soon.
    } else if (CallersReturn()) {
      wake = to_park_ = true;
    } else {
      const bool settled = Arm();
      const auto next = work_.NextDeadline();
      wake = !settled || (next && *next < sleep_until_);
    }
    lock_.Release();
    if (wake || (for_long && parked_.load(std::memory_order_seq_cst))) wake_.Wake();
    if (tasks_.empty()) return;
    if (patience.Over()) return wake_.Wake();
    if (!lock_.TryTake()) return;
    Disarm();
    StepOnce(sockets_.Due());
  } while (true);
}

/// A visitor lets go, and nothing moved: what was armed still is, and the thread sleeps for the right time.
void Progress::LeaveAsFound() {
  // One that is parked may be turned away again and again, and nobody else looks at sockets and timers.
  if (parked_.load(std::memory_order_relaxed) && sockets_.Due()) {
    Disarm();
    StepOnce(true);
    return Leave();
  }
  const auto next = work_.NextDeadline();
  const bool wake = next && *next < sleep_until_;
  lock_.Release();
  if (wake) wake_.Wake();
  if (!tasks_.empty() && lock_.TryTake()) StepAndLeave();
}

/// What a caller does who has something for everybody, and waits for nothing.
void Progress::StepAndLeave(bool for_long) {
  Disarm();
  StepOnce(sockets_.Due());
  Leave(for_long);
}

void Progress::Main() {
  bool turned_away = false;
  while (true) {
    callbacks_.RunAll();
    if (stop_.load()) break;
    if (!lock_.TryTakeAsThread()) {
      Park(/*leaving=*/false);
      turned_away = true;
      continue;
    }
    sleep_until_ = TimePoint::max();
    Disarm();
    if (std::exchange(to_park_, false) || turned_away) {
      // The driver has just left, and may be back soon: it is not to find us spinning in its place. But those
      // who only visit look at no socket and no timer.
      StepOnce(true);
      turned_away = CallersReturn();
      if (!callbacks_.empty() || stop_.load(std::memory_order_relaxed)) {
        ReleaseForCallbacks();
      } else {
        turned_away ? Park(/*leaving=*/true) : Sleep();
      }
      continue;
    }
    DriveAsThread();
  }
}

/// Until there is nothing to do, or somebody else is to have progress; then lets go.
void Progress::DriveAsThread() {
  sockets_.AtOnce();
  bool moved = false;
  do {
    moved = StepOnce(sockets_.Due());
    if (!callbacks_.empty() || stop_.load(std::memory_order_relaxed)) return ReleaseForCallbacks();
    if (lock_.wanted()) return lock_.YieldToCaller();
  } while (spin_.GoOn(moved));
  Sleep();
}

void Progress::ReleaseForCallbacks() {
  Patience patience;
  while (true) {
    lock_.Release();
    // Whoever left work and waits for it may hold what a callback is about to wait for.
    if (tasks_.empty() || patience.Over() || !lock_.TryTakeAsThread()) return;
    StepOnce(sockets_.Due());
  }
}

void Progress::Sleep() {
  const bool settled = Arm();
  const auto next = work_.NextDeadline();
  sleep_until_ = next.value_or(TimePoint::max());
  lock_.Release();
  if (!settled || !tasks_.empty()) return;
  std::array<epoll_event, 1> events{};  // Only whether; whoever drives looks at what.
  if (next) {
    poller_.Wait(events, *next - Clock::now());
  } else {
    poller_.Wait(events, std::nullopt);
  }
  wake_.Drain();
}

/// Sleeps for kParkSlice, or until somebody wakes us; not at all if a callback is due. A caller drives, and
/// wakes us if it leaves for long. Or we are `leaving`: with nothing armed, as callers come back at once.
void Progress::Park(bool leaving) {
  if (leaving) sleep_until_ = TimePoint::min();
  parked_.store(true, std::memory_order_seq_cst);
  if (leaving) lock_.Release();
  const bool may_sleep = leaving ? tasks_.empty() : lock_.held();
  if (may_sleep && callbacks_.empty() && !stop_.load()) {
    pollfd entry{.fd = wake_.fd(), .events = POLLIN, .revents = 0};
    constexpr timespec kWait{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kParkSlice).count()};
    if (ppoll(&entry, 1, &kWait, nullptr) != 0) wake_.Drain();
  }
  parked_.store(false, std::memory_order_relaxed);
}

}  // namespace weightcast::endpoint
