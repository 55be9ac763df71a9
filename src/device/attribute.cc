#include "device/attribute.h"

#include "device/error.h"

namespace weightcast::device {

Result<int> AttributeOf(const Context& context, drivers::CUdevice_attribute attribute) {
  drivers::Cuda& cuda = context.cuda();
  drivers::CUdevice device = 0;
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(cuda, DeviceGet, &device, context.ordinal()));
  int value = 0;
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(cuda, DeviceGetAttribute, &value, attribute, device));
  return value;
}

}  // namespace weightcast::device
