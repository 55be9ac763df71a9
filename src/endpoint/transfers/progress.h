#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "base/poller.h"
#include "base/task_queue.h"
#include "endpoint/transfers/flag.h"
#include "endpoint/transfers/progress_lock.h"
#include "endpoint/transfers/spin.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::endpoint {

/// What progress is made on. Called by the holder of progress alone.
class Work {
 public:
  virtual ~Work() = default;
  /// Moves everything on once; true if anything moved. `sockets`: also look at the poller and the timers.
  virtual bool Step(bool sockets) = 0;
  /// Before nobody drives: false means that there is work at once. After true the poller tells of work.
  virtual bool Arm() = 0;
  /// Somebody drives again.
  virtual void Disarm() = 0;
  /// Callers who come again and again had better leave it unarmed: peers need nobody here meanwhile.
  [[nodiscard]] virtual bool ArmingIsCostly() const = 0;
  /// While a caller drives: the descriptors it polls anyway need not wake the thread.
  virtual void Mask(bool on) = 0;
  [[nodiscard]] virtual std::optional<TimePoint> NextDeadline() const = 0;
};

/// Who drives an endpoint's work: at each moment one thread, the endpoint's own or a caller. The whole
/// model stands in docs/threads.md.
class Progress {
 public:
  /// Keys of the poller below this are ours; other descriptors are the Work's.
  static constexpr uint64_t kFirstKey = 1;

  /// `work` must outlive it. Errors: kExhausted when descriptors ran out.
  static Result<std::unique_ptr<Progress>> Create(Work& work);

  /// Starts the thread, which holds `keep_alive` until it has ended.
  Status Start(std::shared_ptr<void> keep_alive);
  /// Ends the thread, after the callbacks that wait. False, from the thread itself (a callback): it is only
  /// told to end.
  bool Stop();
  [[nodiscard]] const Poller& poller() const { return poller_; }

  /// Runs `task` under progress, soon. Any thread. `now`: here, if nobody drives, with one step of
  /// everything; right for what is short.
  void Submit(TaskPtr task, bool now);
  /// Runs `visit` here and now, if nobody drives and nothing waits to be run; false: it was not run. For
  /// what can be done at once, without a step of everything: `visit` returns whether it has left anything to
  /// be driven, and only then is there one. Whoever throws under progress ends the process: it would never
  /// be let go.
  template <typename Visit>
  bool TryVisit(Visit&& visit) noexcept {
    if (!tasks_.empty() || !lock_.TryTake()) return false;
    if (visit()) {
      StepAndLeave();
    } else {
      LeaveAsFound();
    }
    return true;
  }
  /// After a visit that left something under way for which nobody will wait: a parked thread watches from now
  /// on. Without it, it would look within 0.5 ms. Any thread; costs a load where no thread is parked.
  void WatchAgain();
  /// Runs `function` under progress and returns when it has run. Any thread, callbacks as well.
  void Call(std::function<void()> function);
  /// Holder of progress: runs `callback` on the thread, without progress, in the order of these calls.
  void Later(std::function<void()> callback);
  /// One step of everything, if nobody drives. Any thread.
  void Step();
  /// Drives or sleeps until `flag` is at least `value`; false at the deadline. Any thread.
  bool WaitFor(Flag& flag, uint32_t value, TimePoint deadline);

 private:
  explicit Progress(Work& work) : work_(work) {}

  class Patience;
  /// When it is time to look at sockets and timers again.
  class SocketTurn {
   public:
    bool Due();
    void AtOnce() { last_ = {}; }

   private:
    TimePoint last_{};
  };
  /// Whether callers who drive come back at once, again and again.
  class Returns {
   public:
    void OnBegin(TimePoint now) { count_ = now - left_ < kSoon ? count_ + 1 : 0; }
    /// `for_long`: this caller will hardly be back at once.
    void OnEnd(TimePoint now, bool for_long) {
      left_ = now;
      if (for_long) count_ = 0;
    }
    /// The next will hardly be long.
    [[nodiscard]] bool Expected() const { return count_ >= kMany && Clock::now() - left_ < kSoon; }

   private:
    /// Callers who drove again within this, so often, will be back so soon once more.
    static constexpr Duration kSoon = std::chrono::microseconds(100);
    static constexpr uint32_t kMany = 8;

    uint32_t count_ = 0;  ///< Callers who drove soon after the last had left, one after another.
    TimePoint left_{};    ///< When the last caller who drove left.
  };

  bool StepOnce(bool sockets) noexcept;
  bool Arm();
  void Disarm();
  void Drive(const Flag& flag, uint32_t value, TimePoint deadline);
  /// Each of them would disarm again what the one before had armed.
  [[nodiscard]] bool CallersReturn() const { return returns_.Expected() && work_.ArmingIsCostly(); }
  /// `for_long`: the caller will hardly be back at once.
  void Leave(bool for_long = false);
  void LeaveAsFound();
  void StepAndLeave(bool for_long = false);
  void Main();
  void DriveAsThread();
  void ReleaseForCallbacks();
  void Sleep();
  void Park(bool leaving);

  Work& work_;
  Poller poller_;
  WakeFd wake_;
  TaskQueue tasks_;      ///< Taken by the holder of progress.
  TaskQueue callbacks_;  ///< Taken by the thread.
  // The holder's.
  Spin spin_;
  SocketTurn sockets_;
  bool armed_ = false;
  bool masked_ = false;
  Returns returns_;
  bool to_park_ = false;  ///< The thread has been woken only to be parked.

  ProgressLock lock_;
  /// The thread comes and looks within kParkSlice, and watches nothing until then.
  std::atomic<bool> parked_{false};
  std::atomic<bool> stop_{false};
  TimePoint sleep_until_{TimePoint::max()};  ///< When the thread wakes by itself. Written by holders.
  std::thread thread_;
};

/// Runs `function` under progress, soon; here, if nobody drives.
template <typename Function>
void SubmitNow(Progress& progress, Function function) {
  progress.Submit(MakeTask(std::move(function)), /*now=*/true);
}

}  // namespace weightcast::endpoint
