#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "device/gpus.h"
#include "device/health.h"
#include "device/wake_signal.h"
#include "weightcast/status.h"

namespace weightcast::device {

class KernelLoader;

/// Something of a device that goes on by itself and has to be looked at: copies, an event.
class Work {
 public:
  enum class State : uint8_t {
    kIdle,     ///< Nothing is under way.
    kWaiting,  ///< Something is under way and has not moved.
    kMoved,    ///< Something was begun or is over.
    kOver,     ///< Never to be looked at again.
  };
  virtual ~Work() = default;
  /// On wc-device, inside its context.
  virtual State Step() = 0;
  /// Its holder has let it go, and copies that it has begun go on. On wc-device.
  [[nodiscard]] virtual bool GoesOnAlone() const { return false; }
};

/// One device's thread, wc-device: it makes every driver call of the data path (docs/gpu.md). Nobody may
/// wait for it while holding progress: a driver call may block for seconds.
///
/// Threads: any, unless a comment says otherwise. The last handle must go on a thread that may wait: it
/// joins the thread, after the tasks that were left and the copies that were begun.
class Worker {
 public:
  enum class Mode : uint8_t {
    kThread,  ///< It runs by itself.
    kCalled,  ///< No thread: tests call Step().
  };
  static Result<std::shared_ptr<Worker>> Create(std::shared_ptr<const Context> context,
                                                Mode mode = Mode::kThread);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  /// Outlives the worker for those who hold it. Once it is lost, links of this device go down.
  [[nodiscard]] const std::shared_ptr<Health>& health() const;
  [[nodiscard]] const Context& context() const { return health()->context(); }
  /// Of the device, for all who use them.
  [[nodiscard]] const std::shared_ptr<KernelLoader>& kernels() const;
  /// Runs `task` on wc-device, inside the device's context, after the tasks before it.
  void Run(std::function<void()> task);
  /// As Run, but not before the copies are over that go on though their queue has gone: for a task that takes
  /// away what they use.
  void RunAfterCopies(std::function<void()> task);
  /// Looks at `work` from now on, until it is over.
  void Add(std::shared_ptr<Work> work);
  /// A work has something to begin. No lock, no allocation; a system call only where the worker sleeps.
  void Wake();
  /// From now on `signal` rings when a task, a copy or an event is over.
  void AddSignal(const std::shared_ptr<WakeSignal>& signal);
  void RemoveSignal(const std::shared_ptr<WakeSignal>& signal);

  /// Mode::kCalled: what the thread does in one turn. False: it would go to sleep.
  bool Step();

 private:
  class Core;
  explicit Worker(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  const std::shared_ptr<Core> core_;
  std::thread thread_;
};

}  // namespace weightcast::device
