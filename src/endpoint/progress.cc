#include "endpoint/progress.h"

#include <poll.h>

#include <array>
#include <system_error>

#include "base/process.h"
#include "base/strings.h"
#include "endpoint/spin.h"

namespace weightcast::endpoint {
namespace {

constexpr uint64_t kWakeKey = 0;
/// Sockets and timers are looked at this often by one who drives without a pause.
constexpr Duration kSocketInterval = std::chrono::microseconds(100);
/// A sleeper looks again this often whether anyone drives: the thread may be held up in a callback.
constexpr Duration kSleepSlice = std::chrono::milliseconds(100);

/// When it is time to look at the sockets again.
class SocketTurn {
 public:
  bool Due() {
    const TimePoint now = Clock::now();
    if (now - last_ < kSocketInterval) return false;
    last_ = now;
    return true;
  }

 private:
  TimePoint last_{};
};

}  // namespace

Result<std::unique_ptr<Progress>> Progress::Create(Work& work) {
  std::unique_ptr<Progress> progress(new Progress(work));
  WC_ASSIGN_OR_RETURN(progress->poller_, Poller::Create());
  WC_ASSIGN_OR_RETURN(progress->wake_, WakeFd::Create());
  WC_RETURN_IF_ERROR(progress->poller_.Add(progress->wake_.fd(), EPOLLIN, kWakeKey));
  return progress;
}

Status Progress::Start(std::shared_ptr<void> keep_alive) {
  try {
    thread_ = std::thread([this, keep_alive = std::move(keep_alive)] { Main(); });
  } catch (const std::system_error& error) {
    return {Code::kExhausted, StrCat("cannot start the progress thread: ", error.what())};
  }
  return Status::Ok();
}

void Progress::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  wake_.Wake();
  if (std::this_thread::get_id() == thread_.get_id()) {
    thread_.detach();
    return;
  }
  thread_.join();
  callbacks_.RunAll();
}

bool Progress::TryOwn() {
  // The load saves the others a cache line. Sequentially consistent like Push and the look at the queue
  // after letting go: one of the two sides sees the other.
  return !owned_.load(std::memory_order_seq_cst) && !owned_.exchange(true, std::memory_order_seq_cst);
}

bool Progress::StepOnce(bool sockets) {
  const bool ran = tasks_.RunAll() > 0;
  return work_.Step(sockets) || ran;
}

void Progress::Submit(std::unique_ptr<Task> task, bool now) {
  tasks_.Push(std::move(task));
  if (now) {
    if (!TryOwn()) return;  // The holder looks at the queue once more after it has let go.
    work_.Disarm();
    StepOnce(false);
    Leave();
  } else if (!owned_.load(std::memory_order_seq_cst)) {
    wake_.Wake();
  }
}

void Progress::Call(std::function<void()> function) {
  const auto done = std::make_shared<Flag>();
  Submit(MakeTask([function = std::move(function), done] {
           function();
           done->Set(1);
         }),
         /*now=*/true);
  WaitFor(*done, 1, std::nullopt);
}

void Progress::Later(std::function<void()> callback) {
  const bool first = callbacks_.Push(MakeTask(std::move(callback)));
  if (first && !by_thread_) wake_.Wake();
}

bool Progress::WaitFor(Flag& flag, uint32_t value, std::optional<TimePoint> deadline) {
  while (flag.value() < value) {
    if (TryOwn()) {
      Drive(flag, value, deadline);
      if (flag.value() >= value) break;
    }
    const TimePoint now = Clock::now();
    if (deadline && now >= *deadline) return false;
    const TimePoint slice = now + kSleepSlice;
    flag.SleepUntil(value, deadline && *deadline < slice ? *deadline : slice);
  }
  return true;
}

/// Until the flag is set, the deadline has passed or nothing moves.
void Progress::Drive(const Flag& flag, uint32_t value, std::optional<TimePoint> deadline) {
  work_.Disarm();
  work_.Mask(true);
  Spin spin;
  SocketTurn sockets;
  bool moved = true;
  while (flag.value() < value && spin.GoOn(moved)) {
    const bool look = sockets.Due();
    if (look && deadline && Clock::now() >= *deadline) break;
    moved = StepOnce(look);
  }
  work_.Mask(false);
  Leave();
}

/// A caller lets go: from here on the thread watches.
void Progress::Leave() {
  do {
    const bool settled = work_.Arm();
    const auto next = work_.NextDeadline();
    const bool wake = !settled || (next && *next < sleep_until_);
    owned_.store(false, std::memory_order_seq_cst);
    if (wake || parked_.load(std::memory_order_seq_cst)) wake_.Wake();
    if (tasks_.empty() || !TryOwn()) return;
    work_.Disarm();
    StepOnce(false);
  } while (true);
}

void Progress::Main() {
  NameThread("wc-progress");
  while (true) {
    callbacks_.RunAll();
    if (stop_.load()) break;
    if (!TryOwn()) {
      Park();
      continue;
    }
    by_thread_ = true;
    sleep_until_ = TimePoint::max();
    work_.Disarm();
    if (DriveUntilIdle()) {
      Sleep();
    } else {
      ReleaseForCallbacks();
    }
  }
}

/// False when callbacks wait or the thread is to end.
bool Progress::DriveUntilIdle() {
  Spin spin;
  SocketTurn sockets;
  bool moved = false;
  do {
    moved = StepOnce(sockets.Due());
    if (!callbacks_.empty() || stop_.load(std::memory_order_relaxed)) return false;
  } while (spin.GoOn(moved));
  return true;
}

void Progress::ReleaseForCallbacks() {
  while (true) {
    by_thread_ = false;
    owned_.store(false, std::memory_order_seq_cst);
    // Whoever left work and waits for it may hold what a callback is about to wait for.
    if (tasks_.empty() || !TryOwn()) return;
    by_thread_ = true;
    StepOnce(false);
  }
}

void Progress::Sleep() {
  const bool settled = work_.Arm();
  const auto next = work_.NextDeadline();
  sleep_until_ = next.value_or(TimePoint::max());
  by_thread_ = false;
  owned_.store(false, std::memory_order_seq_cst);
  if (!settled || !tasks_.empty()) return;
  std::array<epoll_event, 1> events{};  // Only whether; whoever drives looks at what.
  if (next) {
    poller_.Wait(events, *next - Clock::now());
  } else {
    poller_.Wait(events, std::nullopt);
  }
  wake_.Drain();
}

/// A caller drives: only it, when it leaves, or a callback may wake us.
void Progress::Park() {
  parked_.store(true, std::memory_order_seq_cst);
  if (owned_.load(std::memory_order_seq_cst) && callbacks_.empty() && !stop_.load()) {
    pollfd entry{.fd = wake_.fd(), .events = POLLIN, .revents = 0};
    poll(&entry, 1, -1);
  }
  wake_.Drain();
  parked_.store(false, std::memory_order_relaxed);
}

}  // namespace weightcast::endpoint
