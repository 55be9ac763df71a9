#include "device/stream_event.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "base/advice.h"
#include "device/error.h"

namespace weightcast::device {

/// The worker's half, which may outlive the event's last holder by one look.
class StreamEvent::Watch final : public Work {
 public:
  Watch(std::shared_ptr<Health> health, drivers::CUevent event, std::function<void()> on_over)
      : health_(std::move(health)), event_(event), on_over_(std::move(on_over)) {}

  [[nodiscard]] bool Done() const { return done_.load(std::memory_order_seq_cst); }
  void Drop() { dropped_.store(true, std::memory_order_release); }

  State Step() override {
    drivers::Cuda& cuda = health_->context().cuda();
    if (!dropped_.load(std::memory_order_acquire) && !health_->lost()) {
      const auto result = cuda.EventQuery(event_);
      if (result == drivers::CUDA_ERROR_NOT_READY) return State::kWaiting;
      if (health_->Check(result, "cuEventQuery").ok()) done_.store(true, std::memory_order_seq_cst);
    }
    cuda.EventDestroy(event_);
    if (on_over_ && !dropped_.load(std::memory_order_acquire)) on_over_();
    return State::kOver;
  }

 private:
  const std::shared_ptr<Health> health_;
  const drivers::CUevent event_;
  const std::function<void()> on_over_;
  std::atomic<bool> done_{false};
  std::atomic<bool> dropped_{false};
};

namespace {

// Of a caller that waits for an event.
constexpr Duration kPollFor = std::chrono::microseconds(50);
constexpr Duration kBetweenLooks = std::chrono::microseconds(50);
constexpr Duration kGlance = std::chrono::milliseconds(100);

Status CheckNotCaptured(const Context& context, drivers::CUstream stream) {
  drivers::CUstreamCaptureStatus capture{};
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(context.cuda(), StreamIsCapturing, stream, &capture));
  if (capture == drivers::CU_STREAM_CAPTURE_STATUS_NONE) return Status::Ok();
  return Error(Code::kInvalidArgument, "the stream of device ", context.ordinal(),
               " is being captured into a CUDA graph, where weightcast cannot wait for it; make this call "
               "outside of the capture");
}

Result<drivers::CUevent> RecordEvent(drivers::Cuda& cuda, drivers::CUstream stream) {
  drivers::CUevent event{};
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(cuda, EventCreate, &event, drivers::CU_EVENT_DISABLE_TIMING));
  const Status recorded = WC_CALL_DRIVER(cuda, EventRecord, event, stream);
  if (recorded.ok()) return event;
  cuda.EventDestroy(event);
  return recorded;
}

}  // namespace

Result<std::shared_ptr<StreamEvent>> StreamEvent::Record(std::shared_ptr<Worker> worker, void* stream,
                                                         std::function<void()> on_over) {
  const auto raw = static_cast<drivers::CUstream>(stream);
  const ContextScope scope(worker->context());
  WC_RETURN_IF_ERROR(scope.status());
  drivers::Cuda& cuda = worker->context().cuda();
  WC_RETURN_IF_ERROR(CheckNotCaptured(worker->context(), raw));
  WC_ASSIGN_OR_RETURN(const drivers::CUevent event, RecordEvent(cuda, raw));
  auto watch = std::make_shared<Watch>(worker->health(), event, std::move(on_over));
  worker->Add(watch);
  return std::shared_ptr<StreamEvent>(new StreamEvent(std::move(worker), std::move(watch)));
}

StreamEvent::StreamEvent(std::shared_ptr<Worker> worker, std::shared_ptr<Watch> watch)
    : worker_(std::move(worker)), watch_(std::move(watch)) {}

StreamEvent::~StreamEvent() {
  watch_->Drop();
  worker_->Wake();
}

bool StreamEvent::Done() const { return watch_->Done(); }
Status StreamEvent::failure() const { return worker_->health()->failure(); }

/// Looks again and again: what waits in the driver could not be interrupted.
Status Synchronise(const Context& context, void* stream, TimePoint deadline,
                   const std::function<bool()>& interrupted) {
  const auto raw = static_cast<drivers::CUstream>(stream);
  drivers::Cuda& cuda = context.cuda();
  drivers::CUevent event{};
  {
    const ContextScope scope(context);
    WC_RETURN_IF_ERROR(scope.status());
    WC_RETURN_IF_ERROR(CheckNotCaptured(context, raw));
    WC_ASSIGN_OR_RETURN(event, RecordEvent(cuda, raw));
  }
  const TimePoint begun = Clock::now();
  TimePoint glance = begun + kGlance;
  Status stopped;
  while (true) {
    {
      const ContextScope scope(context);
      const auto result = stopped.ok() ? cuda.EventQuery(event) : drivers::CUDA_SUCCESS;
      if (result != drivers::CUDA_ERROR_NOT_READY) {
        cuda.EventDestroy(event);
        return stopped.ok() ? DriverStatus(cuda, result, "cuEventQuery") : stopped;
      }
    }
    const TimePoint now = Clock::now();
    if (now >= deadline)
      stopped =
          Error(Code::kTimedOut, "the stream of device ", context.ordinal(),
                " has not finished its work within the timeout of this call; wait longer, or check what "
                "runs on that stream");
    if (now >= glance) {
      if (interrupted && interrupted())
        stopped = InterruptedCall(StrCat("the wait for a stream of device ", context.ordinal()));
      glance = now + kGlance;
    }
    if (now - begun > kPollFor) std::this_thread::sleep_for(kBetweenLooks);
  }
}

}  // namespace weightcast::device
