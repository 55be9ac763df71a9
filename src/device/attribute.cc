#include "device/attribute.h"

#include "device/error.h"

namespace weightcast::device {

Result<int> AttributeOf(const Context& context, drivers::CUdevice_attribute attribute) {
  drivers::Cuda& cuda = context.cuda();
  drivers::CUdevice device = 0;
  WC_RETURN_IF_ERROR(DriverStatus(cuda, cuda.DeviceGet(&device, context.ordinal()), "cuDeviceGet"));
  int value = 0;
  WC_RETURN_IF_ERROR(
      DriverStatus(cuda, cuda.DeviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute"));
  return value;
}

}  // namespace weightcast::device
