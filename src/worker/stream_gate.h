#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "device/stream_event.h"
#include "weightcast/device.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::worker {

/// The streams' positions at a publication: before they are over nothing reads its sources. Thread safe.
class StreamGate {
 public:
  /// Records them on the caller's thread, which may block in the driver. `on_moved` is called on wc-device
  /// when one is over or its context is lost; it must not block, and must not own the gate. Errors: as
  /// StreamEvent::Record, and of a device that is not in use.
  static Result<std::shared_ptr<const StreamGate>> Record(const Settings& settings,
                                                          std::span<const StreamRef> streams,
                                                          const std::function<void()>& on_moved);

  /// Nothing has to be waited for any more: all are over, or one never will be.
  [[nodiscard]] bool Open() const;
  /// Not ok: a context is lost, and with it what its stream had to do.
  [[nodiscard]] Status status() const;

 private:
  explicit StreamGate(std::vector<std::shared_ptr<device::StreamEvent>> events)
      : events_(std::move(events)) {}
  const std::vector<std::shared_ptr<device::StreamEvent>> events_;
};

}  // namespace weightcast::worker
