#pragma once

#include <string>
#include <vector>

#include "device/gpus.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// What a person wants to know of one device.
struct ListedGpu {
  Gpu gpu;
  std::string uuid;          ///< As nvidia-smi prints it.
  std::string pci_address;   ///< As in sysfs; empty: unknown.
  std::vector<int> reaches;  ///< Ordinals of the other devices whose memory it can copy by itself.
  std::vector<int> linked;   ///< Of these, those that take its atomics, too: over NVLink.
};

/// The devices of this process, for `weightcast info`.
struct Inventory {
  Status status;       ///< Why there is none.
  std::string driver;  ///< The newest CUDA that the driver knows: "13.0"; empty: unknown.
  std::vector<ListedGpu> gpus;
};

/// Loads the driver unless the setting `gpu` is off. Makes no context.
Inventory TakeInventory(const Settings& settings);

}  // namespace weightcast::device
