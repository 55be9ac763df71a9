#pragma once

#include <cstddef>
#include <cstdint>

namespace weightcast::drivers {

// The types and values of cuda.h that src/device needs, under their own names.
using CUdeviceptr = unsigned long long;
using CUdevice = int;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmemGenericAllocationHandle = unsigned long long;
struct CUuuid {
  char bytes[16];
};
struct CUipcMemHandle {
  char reserved[64];
};

using CUresult = int;
enum : CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
  CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
  CUDA_ERROR_CONTAINED = 226,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
  CUDA_ERROR_INVALID_PC = 718,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_TENSOR_MEMORY_LEAK = 721,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_UNKNOWN = 999,
};

enum CUstreamCaptureMode : int { CU_STREAM_CAPTURE_MODE_GLOBAL = 0, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum CUstreamCaptureStatus : int { CU_STREAM_CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_STATUS_ACTIVE = 1 };
enum CUpointer_attribute : int {
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
  CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
};
enum CUmemAllocationHandleType : int {
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
  CU_MEM_HANDLE_TYPE_FABRIC = 8,
};
enum CUmemLocationType : int { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum CUmemAccess_flags : int { CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
enum CUmemcpySrcAccessOrder : int { CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1 };
// Of arguments that are plain unsigned integers.
enum : unsigned int {
  CU_MEMORYTYPE_HOST = 1,
  CU_MEMORYTYPE_DEVICE = 2,
  CU_STREAM_NON_BLOCKING = 1,
  CU_EVENT_DISABLE_TIMING = 2,
  CU_MEMHOSTALLOC_PORTABLE = 1,
  CU_MEMHOSTALLOC_DEVICEMAP = 2,
  CU_MEMHOSTREGISTER_PORTABLE = 1,
  CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
  CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE = 1,
};

struct CUmemLocation {
  CUmemLocationType type;
  int id;
};
struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};
struct CUmemcpyAttributes {
  CUmemcpySrcAccessOrder srcAccessOrder;
  CUmemLocation srcLocHint;
  CUmemLocation dstLocHint;
  unsigned int flags;
};
static_assert(sizeof(CUmemcpyAttributes) == 24);

/// The part of libcuda that we use, as a table that a test can replace. Each function is libcuda's own of
/// that name, in its newest form: arguments and results as in the driver API's manual. One that the library
/// does not have gives CUDA_ERROR_NOT_SUPPORTED.
///
/// Threads: as libcuda, every function from any thread.
class Cuda {
 public:
  virtual ~Cuda() = default;

  virtual CUresult Init(unsigned int flags) = 0;
  virtual CUresult GetErrorName(CUresult error, const char** name) = 0;
  virtual CUresult GetErrorString(CUresult error, const char** words) = 0;

  // --- Devices and contexts
  virtual CUresult DeviceGet(CUdevice* device, int ordinal) = 0;
  virtual CUresult DeviceGetCount(int* count) = 0;
  virtual CUresult DeviceGetName(char* name, int length, CUdevice device) = 0;
  virtual CUresult DeviceGetUuid(CUuuid* uuid, CUdevice device) = 0;
  virtual CUresult DevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) = 0;
  virtual CUresult DevicePrimaryCtxRetain(CUcontext* context, CUdevice device) = 0;
  virtual CUresult DevicePrimaryCtxRelease(CUdevice device) = 0;
  virtual CUresult CtxPushCurrent(CUcontext context) = 0;
  virtual CUresult CtxPopCurrent(CUcontext* context) = 0;
  virtual CUresult CtxGetStreamPriorityRange(int* least, int* greatest) = 0;
  virtual CUresult CtxEnablePeerAccess(CUcontext peer, unsigned int flags) = 0;
  virtual CUresult ThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) = 0;

  // --- Memory
  virtual CUresult PointerGetAttributes(unsigned int count, CUpointer_attribute* names, void** values,
                                        CUdeviceptr address) = 0;
  virtual CUresult MemGetAddressRange(CUdeviceptr* base, size_t* length, CUdeviceptr address) = 0;
  virtual CUresult MemAlloc(CUdeviceptr* address, size_t length) = 0;
  virtual CUresult MemFree(CUdeviceptr address) = 0;
  virtual CUresult MemHostRegister(void* host, size_t length, unsigned int flags) = 0;
  virtual CUresult MemHostUnregister(void* host) = 0;
  virtual CUresult MemHostGetDevicePointer(CUdeviceptr* address, void* host, unsigned int flags) = 0;
  virtual CUresult MemHostAlloc(void** host, size_t length, unsigned int flags) = 0;
  virtual CUresult MemFreeHost(void* host) = 0;

  // --- Sharing
  virtual CUresult IpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) = 0;
  virtual CUresult IpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) = 0;
  virtual CUresult IpcCloseMemHandle(CUdeviceptr address) = 0;
  virtual CUresult MemRelease(CUmemGenericAllocationHandle handle) = 0;
  virtual CUresult MemAddressReserve(CUdeviceptr* address, size_t length, size_t alignment, CUdeviceptr at,
                                     unsigned long long flags) = 0;
  virtual CUresult MemAddressFree(CUdeviceptr address, size_t length) = 0;
  virtual CUresult MemMap(CUdeviceptr address, size_t length, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) = 0;
  virtual CUresult MemUnmap(CUdeviceptr address, size_t length) = 0;
  virtual CUresult MemSetAccess(CUdeviceptr address, size_t length, const CUmemAccessDesc* access,
                                size_t count) = 0;
  virtual CUresult MemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) = 0;
  virtual CUresult MemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type, unsigned long long flags) = 0;
  virtual CUresult MemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                                CUmemAllocationHandleType type) = 0;

  // --- Streams and events
  virtual CUresult StreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) = 0;
  virtual CUresult StreamDestroy(CUstream stream) = 0;
  virtual CUresult StreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) = 0;
  virtual CUresult StreamWriteValue64(CUstream stream, CUdeviceptr address, uint64_t value,
                                      unsigned int flags) = 0;
  virtual CUresult EventCreate(CUevent* event, unsigned int flags) = 0;
  virtual CUresult EventDestroy(CUevent event) = 0;
  virtual CUresult EventRecord(CUevent event, CUstream stream) = 0;
  virtual CUresult EventQuery(CUevent event) = 0;
  virtual CUresult MemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t length, CUstream stream) = 0;
  virtual CUresult MemcpyBatchAsync(const CUdeviceptr* to, const CUdeviceptr* from, const size_t* lengths,
                                    size_t count, CUmemcpyAttributes* attributes, size_t* firsts,
                                    size_t attribute_count, CUstream stream) = 0;
};

}  // namespace weightcast::drivers
