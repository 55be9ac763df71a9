#pragma once

#include <functional>
#include <memory>

#include "device/worker.h"
#include "weightcast/clock.h"
#include "weightcast/device.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// A stream's position: over when all that was left in the stream before it is over. The worker watches it,
/// so that asking costs one load. Where the context is lost it is never over: ask Health.
class StreamEvent final : public DeviceEvent {
 public:
  /// Records the position of `stream` (a CUstream of this device; null: the legacy default stream) on the
  /// caller's thread. kInvalidArgument where the stream is being captured into a graph: what a graph will do
  /// has no position.
  /// `on_over`, if any, is called once on wc-device when it is over or the context is lost, unless it was
  /// dropped before; must not block, and must not own the event.
  static Result<std::shared_ptr<StreamEvent>> Record(std::shared_ptr<Worker> worker, void* stream,
                                                     std::function<void()> on_over = {});
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;
  ~StreamEvent() override;

  /// Any thread; one load. Armed WakeSignals of the worker ring when it becomes true.
  [[nodiscard]] bool Done() const override;
  /// Not ok: the context is lost, and Done never becomes true.
  [[nodiscard]] Status failure() const;

 private:
  class Watch;
  StreamEvent(std::shared_ptr<Worker> worker, std::shared_ptr<Watch> watch);

  const std::shared_ptr<Worker> worker_;
  const std::shared_ptr<Watch> watch_;
};

/// Waits, on the caller's thread, until all that was left in the stream is over. Errors as Record's;
/// kTimedOut at the deadline, kCancelled once `interrupted`, which is looked at ten times a second, is true.
Status Synchronise(const Context& context, void* stream, TimePoint deadline = kNever,
                   const std::function<bool()>& interrupted = {});

}  // namespace weightcast::device
