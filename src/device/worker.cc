#include "device/worker.h"

#include <utility>

#include "base/thread.h"
#include "device/worker_core.h"

namespace weightcast::device {

Result<std::shared_ptr<Worker>> Worker::Create(std::shared_ptr<const Context> context, Mode mode) {
  const auto core = std::make_shared<Core>(std::move(context));
  std::shared_ptr<Worker> worker(new Worker(core));
  if (mode == Mode::kCalled) return worker;
  WC_ASSIGN_OR_RETURN(worker->thread_, StartThread("wc-device", [core] { core->Main(); }));
  return worker;
}

Worker::~Worker() {
  if (context().forked()) {
    if (thread_.joinable()) thread_.detach();  // It goes on in the parent only.
    return;
  }
  if (!thread_.joinable()) {
    const ContextScope scope(context());
    core_->Finish();
    return;
  }
  core_->Stop();
  if (std::this_thread::get_id() == thread_.get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

const std::shared_ptr<Health>& Worker::health() const { return core_->health(); }

const std::shared_ptr<KernelLoader>& Worker::kernels() const { return core_->kernels(); }

void Worker::Run(std::function<void()> task) { core_->Push(MakeTask(std::move(task))); }

void Worker::RunAfterCopies(std::function<void()> task) {
  core_->Push(MakeTask([core = core_.get(), task = std::move(task)] { core->RunAfterCopies(task); }));
}

void Worker::Add(std::shared_ptr<Work> work) {
  core_->Push(MakeTask([core = core_.get(), work = std::move(work)] { core->Add(work); }));
}

void Worker::Wake() { core_->Wake(); }
void Worker::AddSignal(const std::shared_ptr<WakeSignal>& signal) { core_->AddSignal(signal); }
void Worker::RemoveSignal(const std::shared_ptr<WakeSignal>& signal) { core_->RemoveSignal(signal); }

bool Worker::Step() {
  const ContextScope scope(context());
  return scope.status().ok() && core_->Turn() != Work::State::kIdle;
}

}  // namespace weightcast::device
