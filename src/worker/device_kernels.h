#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string_view>

#include "device/kernels.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::worker {

/// The kernels of the devices that tensors lie on. Where a device has none, its tensors pass through host
/// memory; the log says so once. Thread safe.
class DeviceKernels {
 public:
  explicit DeviceKernels(const Settings& settings) : settings_(settings) {}

  /// Whether this device may be asked. No driver call.
  [[nodiscard]] bool Usable(int device) const;
  /// Loads them when first asked: may block in the driver.
  Result<std::shared_ptr<device::Kernels>> Of(int device);
  /// From now on `device` is not usable. `which`: the tensors that this concerns ("that need a cast").
  void GiveUp(int device, std::string_view which, const Status& why);

 private:
  const Settings settings_;
  mutable std::mutex mutex_;
  std::set<int> unusable_;
};

}  // namespace weightcast::worker
