#include "control/planner_thread.h"

#include <utility>

#include "base/process.h"
#include "trace/metrics.h"

namespace weightcast::control {

PlannerThread::PlannerThread() : thread_([this] { Run(); }) {}

PlannerThread::~PlannerThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    tasks_.clear();
  }
  wake_.notify_one();
  thread_.join();
}

void PlannerThread::Submit(PlanJob job, Done done) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back({std::move(job), std::move(done)});
  }
  wake_.notify_one();
}

void PlannerThread::Run() {
  NameThread("wc-planner");
  trace::Timing& timing = trace::TimingNamed("control.plan");
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
    if (stop_) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    PlanOutput output;
    {
      const trace::Span span(timing);
      output = RunPlan(task.job);
    }
    task.done(std::move(output));
    lock.lock();
  }
}

}  // namespace weightcast::control
