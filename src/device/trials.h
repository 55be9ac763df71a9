#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "device/buffer.h"
#include "device/describe.h"
#include "device/mapping.h"
#include "device/worker.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// Device memory of our own, on which a peer's device tries the way here. One half holds a pattern; into the
/// other the peer writes.
struct TrialCell {
  static constexpr size_t kHalf = 512 << 10;
  static constexpr size_t kBytes = 2 * kHalf;
  std::unique_ptr<Buffer> buffer;
  DeviceMemory memory;  ///< Of `buffer`.
  uint32_t seed = 0;    ///< Of the pattern.
};

/// Tries whether a device moves bytes over a way as they are. A way that lies (IOMMU, ACS, a partition of the
/// NVSwitch) gives neither an error nor a late completion, so the bytes themselves are compared. One trial at
/// a time on each device; it keeps 1 MiB of device memory and 1 MiB of pinned memory until it goes.
///
/// Threads: any; nothing here calls the driver or blocks. `done` runs on wc-device.
class Trials {
 public:
  explicit Trials(std::shared_ptr<Worker> worker);
  Trials(const Trials&) = delete;
  Trials& operator=(const Trials&) = delete;
  ~Trials();

  using Cell = std::shared_ptr<const TrialCell>;
  /// A cell of this device with a new pattern. Its last holder leaves it to wc-device, which frees it or
  /// fills it again for the next; no peer may have it mapped then. kExhausted where the device has no room.
  void MakeCell(std::function<void(Result<Cell>)> done);
  /// This device reads the pattern of a peer's cell and writes another one there, which it reads back. Ok:
  /// all is as it must be. kCorrupt: something else came. Other errors are the driver's.
  void Try(std::shared_ptr<const Mapping> cell, uint32_t seed, std::function<void(const Status&)> done);

 private:
  class Core;
  const std::shared_ptr<Worker> worker_;
  const std::shared_ptr<Core> core_;
};

}  // namespace weightcast::device
