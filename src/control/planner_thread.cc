#include "control/planner_thread.h"

#include <utility>

#include "base/out_of_memory.h"
#include "base/thread.h"
#include "trace/metrics.h"

namespace weightcast::control {
namespace {

PlanOutput PlanOrFail(const PlanJob& job) {
  auto output =
      OrOutOfMemory("the controller", "the plan", [&]() -> Result<PlanOutput> { return RunPlan(job); });
  if (output.ok()) return std::move(*output);
  PlanOutput failed;
  failed.epoch = job.epoch;
  failed.status = output.status();
  return failed;
}

}  // namespace

Status PlannerThread::Start() {
  WC_ASSIGN_OR_RETURN(thread_, StartThread("wc-planner", [this] { Run(); }));
  return Status::Ok();
}

PlannerThread::~PlannerThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    tasks_.clear();
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void PlannerThread::Submit(PlanJob job, Done done) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back({std::move(job), std::move(done)});
  }
  wake_.notify_one();
}

void PlannerThread::Run() {
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
      output = PlanOrFail(task.job);
    }
    task.done(std::move(output));
    lock.lock();
  }
}

}  // namespace weightcast::control
