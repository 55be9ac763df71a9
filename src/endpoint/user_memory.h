#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "weightcast/device.h"
#include "weightcast/memory.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::device {
class Devices;
}

namespace weightcast::endpoint {

/// What the driver says of memory of which the user gives the address alone, and of the user's streams. Loads
/// nothing: a process that has not loaded the driver has no device memory. Any thread that may block in the
/// driver.
class UserMemory {
 public:
  explicit UserMemory(const Settings& settings) : settings_(settings) {}

  /// What these bytes are. kInvalidArgument for managed memory.
  Result<Memory> Recognise(std::span<std::byte> bytes);
  /// Of the allocation that holds this device memory now. Another one than before: it was freed, and this is
  /// other memory at its address.
  Result<uint64_t> IdentityOf(const Memory& memory);
  /// The present position of a stream. `on_over` is called once on wc-device, unless the event was dropped
  /// before: ok when it is over, else why it never will be. It must not block, and must not own the event.
  /// kInvalidArgument while the stream is captured into a graph.
  Result<std::shared_ptr<const DeviceEvent>> Record(const StreamRef& stream,
                                                    std::function<void(const Status&)> on_over);

 private:
  Result<std::shared_ptr<device::Devices>> Open();

  const Settings& settings_;
  std::mutex mutex_;
  std::shared_ptr<device::Devices> devices_;
};

}  // namespace weightcast::endpoint
