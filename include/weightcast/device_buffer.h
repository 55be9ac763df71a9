#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "weightcast/clock.h"
#include "weightcast/device.h"
#include "weightcast/memory.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast {

// Each loads the CUDA driver's library, and may block in the driver: not from a callback. kUnavailable where
// there is no driver or no such device, nobody in this process uses the device yet (no context is made), or
// the setting `gpu` is off.

/// Memory of a GPU that other processes of this host can map. Freed with the last handle; a region in it must
/// be closed before.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  [[nodiscard]] virtual Memory memory() const = 0;
};

/// Allocates `bytes` (> 0) of device memory, not zeroed. kExhausted where the device has no room.
Result<std::shared_ptr<DeviceBuffer>> AllocateDevice(size_t bytes, int device, const Settings& settings = {});

/// What these bytes are, as the driver says: memory of which device, or of the host. kInvalidArgument for
/// managed memory.
Result<Memory> RecogniseMemory(std::span<std::byte> bytes, const Settings& settings = {});

/// Returns when all that was left in the stream before this call is over. kInvalidArgument while the stream
/// is captured into a CUDA graph; kInternal, with the driver's words, where the context is lost; kTimedOut at
/// the deadline; kCancelled when `interrupted`, which is looked at ten times a second, says so.
Status WaitStream(const StreamRef& stream, const Settings& settings = {}, TimePoint deadline = kNever,
                  const std::function<bool()>& interrupted = {});

/// Copies bytes within this process: from and to host memory, or a device's. Both are as long, and do not
/// overlap. Returns when the copy is over; it comes behind no stream: see WaitStream. kInternal, with the
/// driver's words, where it fails.
Status CopyMemory(const Memory& to, const Memory& from, const Settings& settings = {});

}  // namespace weightcast
