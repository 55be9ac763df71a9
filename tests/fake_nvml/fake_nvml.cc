// libnvidia-ml.so.1 with two GPUs, of which the first counts what its NVLinks carry.

#include <cstdint>

#include "drivers/nvml/abi.h"

using namespace weightcast::drivers::nvml;

namespace {
constexpr uint64_t kSentKib = 3;
constexpr uint64_t kReceivedKib = 5;
char first_gpu;
char second_gpu;
}  // namespace

extern "C" {

Return nvmlInit_v2() { return kSuccess; }

const char* nvmlErrorString(Return result) {
  return result == kNotSupported ? "Not Supported" : "Unknown Error";
}

Return nvmlDeviceGetCount_v2(uint32_t* count) {
  *count = 2;
  return kSuccess;
}

Return nvmlDeviceGetHandleByIndex_v2(uint32_t index, Device* device) {
  *device = reinterpret_cast<Device>(index == 0 ? &first_gpu : &second_gpu);
  return index < 2 ? kSuccess : 2;
}

Return nvmlDeviceGetFieldValues(Device device, int count, FieldValue* values) {
  for (int i = 0; i < count; ++i) {
    FieldValue& one = values[i];
    const bool known =
        (one.field == kNvlinkDataSent || one.field == kNvlinkDataReceived) && one.scope == kAllLinks;
    one.result = known && device == reinterpret_cast<Device>(&first_gpu) ? kSuccess : kNotSupported;
    one.value = one.field == kNvlinkDataSent ? kSentKib : kReceivedKib;
  }
  return kSuccess;
}

}  // extern "C"
