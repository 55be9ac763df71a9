#pragma once

#include <atomic>
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

/// What must be over before anything reads the sources of a publication: what its streams held, and before
/// that the call of Publish itself, where the version was announced. Thread safe.
class StreamGate {
 public:
  /// Records them on the caller's thread, which may block in the driver. `on_moved` is called on wc-device
  /// when one is over or its context is lost; it must not block, and must not own the gate. Errors: as
  /// StreamEvent::Record, and of a device that is not in use.
  static Result<std::shared_ptr<StreamGate>> Record(const Settings& settings,
                                                    std::span<const StreamRef> streams,
                                                    const std::function<void()>& on_moved);

  /// Shut until Publish.
  static std::shared_ptr<StreamGate> Announced() { return std::shared_ptr<StreamGate>(new StreamGate); }
  /// Of an announced one, once: from here on `streams` has to be over, or nothing (null).
  void Publish(const StreamGate* streams);
  /// The user has cancelled the update.
  void Cancel() { cancelled_ = true; }
  [[nodiscard]] bool cancelled() const { return cancelled_; }

  /// Nothing has to be waited for any more: all are over, or one never will be.
  [[nodiscard]] bool Open() const;
  /// Not ok: a context is lost, and with it what its stream had to do.
  [[nodiscard]] Status status() const;

 private:
  StreamGate() = default;
  explicit StreamGate(std::vector<std::shared_ptr<device::StreamEvent>> events)
      : events_(std::move(events)), published_(true) {}
  std::vector<std::shared_ptr<device::StreamEvent>> events_;  ///< Unchanged from `published_` on.
  std::atomic<bool> published_ = false;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace weightcast::worker
