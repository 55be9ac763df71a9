#pragma once

#include <cstdint>

#include "base/fd.h"
#include "device/describe.h"
#include "device/gpus.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// Device memory as the kernel hands it to the driver of another device.
struct DmaBuf {
  UniqueFd fd;
  uint64_t offset = 0;  ///< Where the memory's first byte lies in it.
};

/// A dma-buf of the host's pages that hold `memory`, and of no others. kUnavailable, with the driver's words
/// and the kind of memory, where the driver gives none. Any thread that may block in the driver.
Result<DmaBuf> ExportDmaBuf(const Context& context, const DeviceMemory& memory);

/// kUnavailable where the device does not put a NIC's writes in order before the work that is launched once
/// they are known to be complete: it would have to be asked to flush them. As ExportDmaBuf.
Status CheckOrder(const Context& context);

}  // namespace weightcast::device
