#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/gpus.h"
#include "device/mapping.h"
#include "device/worker.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// A device in use: its thread, and what that has mapped.
struct Device {
  std::shared_ptr<Worker> worker;
  std::shared_ptr<Mappings> mappings;
};

/// The devices in use in a process: made at first use, shared, and ended with the last who holds them. Any
/// thread that may block in the driver.
class Devices {
 public:
  explicit Devices(std::shared_ptr<const Gpus> gpus) : gpus_(std::move(gpus)) {}
  /// Errors are those of Gpus::Retain; kExhausted where no thread can be started.
  Result<Device> Of(int ordinal);
  [[nodiscard]] const std::shared_ptr<const Gpus>& gpus() const { return gpus_; }

 private:
  struct Entry {
    std::weak_ptr<Worker> worker;
    std::weak_ptr<Mappings> mappings;
  };
  Device Find(int ordinal);

  const std::shared_ptr<const Gpus> gpus_;
  std::mutex mutex_;
  std::vector<Entry> entries_;  ///< By ordinal.
};

}  // namespace weightcast::device
