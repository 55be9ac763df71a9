#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace weightcast {

/// Something to be done by the queue's consumer.
class Task {
 public:
  virtual ~Task() = default;
  virtual void Run() = 0;
  /// The queue has done with it, whether it ran or not.
  virtual void Dispose() { delete this; }

 private:
  friend class TaskQueue;
  Task* next_ = nullptr;
};

struct DisposeTask {
  void operator()(Task* task) const { task->Dispose(); }
};
using TaskPtr = std::unique_ptr<Task, DisposeTask>;

/// A Task from anything that can be called.
template <typename Function>
TaskPtr MakeTask(Function function) {
  class FunctionTask final : public Task {
   public:
    explicit FunctionTask(Function run) : run_(std::move(run)) {}
    void Run() override { run_(); }

   private:
    Function run_;
  };
  return TaskPtr(new FunctionTask(std::move(function)));
}

/// First in, first out; many producers, one consumer at a time; no lock.
class TaskQueue {
 public:
  TaskQueue() = default;
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;
  ~TaskQueue() {
    for (Task* task = TakeAll(); task != nullptr;) std::exchange(task, task->next_)->Dispose();
  }

  /// Any thread. Sequentially consistent, so that a look at empty() after letting go of progress sees it.
  /// True if the queue was empty: nobody else has announced what is in it.
  bool Push(TaskPtr task) {
    Task* const raw = task.release();
    Task* before = newest_.load(std::memory_order_relaxed);
    do {
      raw->next_ = before;  // From here on not to be read: the consumer may have it.
    } while (
        !newest_.compare_exchange_weak(before, raw, std::memory_order_seq_cst, std::memory_order_relaxed));
    return before == nullptr;
  }
  [[nodiscard]] bool empty() const { return newest_.load(std::memory_order_seq_cst) == nullptr; }

  /// Consumer: runs what is there now, oldest first; what the tasks push waits for the next call.
  size_t RunAll() {
    if (newest_.load(std::memory_order_relaxed) == nullptr) return 0;
    size_t count = 0;
    for (Task* task = TakeAll(); task != nullptr; ++count) {
      const TaskPtr owned(std::exchange(task, task->next_));
      owned->Run();
    }
    return count;
  }

 private:
  Task* TakeAll() {
    Task* newest = newest_.exchange(nullptr, std::memory_order_acquire);
    Task* oldest = nullptr;
    while (newest != nullptr) {
      Task* const older = std::exchange(newest->next_, oldest);
      oldest = std::exchange(newest, older);
    }
    return oldest;
  }

  std::atomic<Task*> newest_{nullptr};
};

}  // namespace weightcast
