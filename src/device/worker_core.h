#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/task_queue.h"
#include "device/kernels.h"
#include "device/worker.h"

namespace weightcast::device {

/// What the thread of a worker owns. It outlives the handle where the handle went on the thread itself.
class Worker::Core {
 public:
  explicit Core(std::shared_ptr<const Context> context)
      : kernels_(std::make_shared<KernelLoader>(context)),
        health_(std::make_shared<Health>(std::move(context))) {}

  // --- Any thread
  [[nodiscard]] const std::shared_ptr<Health>& health() const { return health_; }
  [[nodiscard]] const std::shared_ptr<KernelLoader>& kernels() const { return kernels_; }
  void Push(TaskPtr task);
  void Wake();
  void Stop();
  void AddSignal(const std::shared_ptr<WakeSignal>& signal);
  void RemoveSignal(const std::shared_ptr<WakeSignal>& signal);

  // --- wc-device
  void Add(std::shared_ptr<Work> work) { works_.push_back(std::move(work)); }
  void RunAfterCopies(std::function<void()> task);
  /// One turn of everything, inside the context.
  Work::State Turn();
  void Main();
  /// Runs the tasks that are left and waits, not for ever, for the works that are under way.
  void Finish();

 private:
  class Patience;
  Work::State StepWorks();
  [[nodiscard]] bool CopiesGoOnAlone() const;
  void RingAll();
  void Sleep(uint32_t seen, Work::State state);

  const std::shared_ptr<KernelLoader> kernels_;
  const std::shared_ptr<Health> health_;
  TaskQueue tasks_;
  std::vector<std::shared_ptr<Work>> works_;      ///< wc-device's alone.
  std::vector<std::function<void()>> postponed_;  ///< Until no copies go on alone; wc-device's alone.

  std::mutex signals_mutex_;
  std::vector<std::shared_ptr<WakeSignal>> signals_;

  std::atomic<uint32_t> wakes_{0};  ///< Counts calls of Wake; the thread sleeps on it.
  std::atomic<bool> asleep_{false};
  std::atomic<bool> stop_{false};
};

}  // namespace weightcast::device
