#pragma once

#include <cstdint>

// What we use of nvml.h, whose names and layouts NVIDIA keeps for all versions of the library.
// NVIDIA's header is not in Debian.

namespace weightcast::drivers::nvml {

using Return = int;
using Device = struct DeviceObject*;
inline constexpr Return kSuccess = 0;
inline constexpr Return kNotSupported = 3;

/// NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX: payload in KiB.
inline constexpr uint32_t kNvlinkDataSent = 138;
inline constexpr uint32_t kNvlinkDataReceived = 139;
/// As the scope of these two: the sum of all links.
inline constexpr uint32_t kAllLinks = UINT32_MAX;

/// nvmlFieldValue_t.
struct FieldValue {
  uint32_t field = 0;
  uint32_t scope = 0;
  int64_t timestamp = 0;
  int64_t latency_us = 0;
  int32_t type = 0;
  Return result = kSuccess;
  uint64_t value = 0;  ///< A union there; both fields are of the type unsigned long long.
};
static_assert(sizeof(FieldValue) == 40);

using Init = Return();
using ErrorString = const char*(Return);
using DeviceGetCount = Return(uint32_t*);
using DeviceGetHandleByIndex = Return(uint32_t, Device*);
using DeviceGetFieldValues = Return(Device, int, FieldValue*);

}  // namespace weightcast::drivers::nvml
