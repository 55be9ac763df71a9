#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "control/plan_job.h"

namespace weightcast::control {

/// Makes plans one after another, so that the controller's own thread goes on while one takes seconds.
class PlannerThread {
 public:
  /// `done` runs in the planner's thread.
  using Done = std::function<void(PlanOutput)>;

  PlannerThread() = default;
  ~PlannerThread();  ///< Waits for the plan that is being made; those that wait are dropped.
  PlannerThread(const PlannerThread&) = delete;
  PlannerThread& operator=(const PlannerThread&) = delete;

  /// Once. kExhausted where the system gives no thread.
  Status Start();
  void Submit(PlanJob job, Done done);

 private:
  struct Task {
    PlanJob job;
    Done done;
  };
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace weightcast::control
