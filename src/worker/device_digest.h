#pragma once

#include <span>
#include <vector>

#include "digest/digest.h"
#include "weightcast/digest.h"
#include "weightcast/status.h"
#include "worker/device_memory.h"
#include "worker/digest_launch.h"

namespace weightcast::worker {

/// A part of a tensor in memory of a device.
struct DevicePart {
  int device = 0;
  const digest::TensorKey* key = nullptr;
  DigestSource source;
};

/// One digest for each part: by a kernel of its device, or where none can, by way of host memory. For threads
/// that may block in the driver. Errors: those of the bytes' way to the host, and of digest::DigestSum.
Result<std::vector<TensorDigest>> DigestsOnDevices(DeviceMemories& devices,
                                                   std::span<const DevicePart> parts);

}  // namespace weightcast::worker
