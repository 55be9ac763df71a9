#pragma once

#include <cstdint>
#include <memory>

#include "weightcast/status.h"

namespace weightcast::drivers {

/// Payload over all NVLinks of one GPU since its driver was loaded, in steps of 1 KiB.
struct NvlinkBytes {
  uint64_t sent = 0;
  uint64_t received = 0;
};

/// NVIDIA's management library, which counts what the GPUs' links carry. It makes no context on a GPU.
class Nvml {
 public:
  virtual ~Nvml() = default;
  /// GPUs of this machine, as nvidia-smi numbers them.
  virtual Result<uint32_t> Gpus() = 0;
  /// kUnavailable: this GPU has no NVLink, or does not count.
  virtual Result<NvlinkBytes> NvlinkOf(uint32_t gpu) = 0;
};

/// libnvidia-ml.so.1, which comes with NVIDIA's driver. kUnavailable: there is none, or no GPU works.
Result<std::shared_ptr<Nvml>> LoadNvml();

}  // namespace weightcast::drivers
