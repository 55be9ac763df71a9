#include "device/in_use.h"

#include "device/in_process.h"
#include "drivers/cuda/cuda.h"

namespace weightcast::device {

Result<std::shared_ptr<Devices>> DevicesInUse(const Settings& settings) {
  WC_RETURN_IF_ERROR(drivers::LoadCuda(drivers::CudaUse::kIfInProcess).status());
  return DevicesInProcess(settings);
}

}  // namespace weightcast::device
