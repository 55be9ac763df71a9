#pragma once

#include "drivers/cuda/abi.h"

/// Every function that we take out of libcuda, once: WC_CUDA_NEEDED(X) and WC_CUDA_WANTED(X) put
/// X(method of the table, symbol of the library, (parameters), (arguments)) for each. cuMemcpyBatchAsync
/// stands apart, because the library has it in two forms.
///
/// DriverGetVersion gives 1000 * major + 10 * minor of the newest CUDA that the driver knows. The image of
/// ModuleLoadDataEx is PTX text with a zero behind it, or a cubin. MemGetHandleForAddressRange writes the
/// descriptor of a dma-buf into an int.
#define WC_CUDA_NEEDED(X)                                                                                    \
  X(Init, cuInit, (unsigned int flags), (flags))                                                             \
  X(DriverGetVersion, cuDriverGetVersion, (int* version), (version))                                         \
  X(GetErrorName, cuGetErrorName, (CUresult error, const char** name), (error, name))                        \
  X(GetErrorString, cuGetErrorString, (CUresult error, const char** words), (error, words))                  \
  X(DeviceGet, cuDeviceGet, (CUdevice * device, int ordinal), (device, ordinal))                             \
  X(DeviceGetCount, cuDeviceGetCount, (int* count), (count))                                                 \
  X(DeviceGetName, cuDeviceGetName, (char* name, int length, CUdevice device), (name, length, device))       \
  X(DeviceGetUuid, cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device), (uuid, device))                     \
  X(DeviceGetAttribute, cuDeviceGetAttribute, (int* value, CUdevice_attribute attribute, CUdevice device),   \
    (value, attribute, device))                                                                              \
  X(DeviceGetPCIBusId, cuDeviceGetPCIBusId, (char* id, int length, CUdevice device), (id, length, device))   \
  X(DeviceCanAccessPeer, cuDeviceCanAccessPeer, (int* can, CUdevice device, CUdevice peer),                  \
    (can, device, peer))                                                                                     \
  X(DeviceGetP2PAttribute, cuDeviceGetP2PAttribute,                                                          \
    (int* value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to), (value, attribute, from, to)) \
  X(DevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState,                                                    \
    (CUdevice device, unsigned int* flags, int* active), (device, flags, active))                            \
  X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device),                \
    (context, device))                                                                                       \
  X(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice device), (device))                      \
  X(CtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext context), (context))                                     \
  X(CtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext * context), (context))                                     \
  X(CtxGetCurrent, cuCtxGetCurrent, (CUcontext * context), (context))                                        \
  X(CtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, (int* least, int* greatest), (least, greatest))  \
  X(CtxEnablePeerAccess, cuCtxEnablePeerAccess, (CUcontext peer, unsigned int flags), (peer, flags))         \
  X(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode),        \
    (mode))                                                                                                  \
  X(PointerGetAttributes, cuPointerGetAttributes,                                                            \
    (unsigned int count, CUpointer_attribute* names, void** values, CUdeviceptr address),                    \
    (count, names, values, address))                                                                         \
  X(MemGetAddressRange, cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t* length, CUdeviceptr address),  \
    (base, length, address))                                                                                 \
  X(MemGetInfo, cuMemGetInfo_v2, (size_t* free, size_t* total), (free, total))                               \
  X(MemAlloc, cuMemAlloc_v2, (CUdeviceptr * address, size_t length), (address, length))                      \
  X(MemFree, cuMemFree_v2, (CUdeviceptr address), (address))                                                 \
  X(MemHostRegister, cuMemHostRegister_v2, (void* host, size_t length, unsigned int flags),                  \
    (host, length, flags))                                                                                   \
  X(MemHostUnregister, cuMemHostUnregister, (void* host), (host))                                            \
  X(MemHostGetDevicePointer, cuMemHostGetDevicePointer_v2,                                                   \
    (CUdeviceptr * address, void* host, unsigned int flags), (address, host, flags))                         \
  X(MemHostAlloc, cuMemHostAlloc, (void** host, size_t length, unsigned int flags), (host, length, flags))   \
  X(MemFreeHost, cuMemFreeHost, (void* host), (host))                                                        \
  X(IpcGetMemHandle, cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr address), (handle, address))   \
  X(IpcOpenMemHandle, cuIpcOpenMemHandle_v2,                                                                 \
    (CUdeviceptr * address, CUipcMemHandle handle, unsigned int flags), (address, handle, flags))            \
  X(IpcCloseMemHandle, cuIpcCloseMemHandle, (CUdeviceptr address), (address))                                \
  X(MemCreate, cuMemCreate,                                                                                  \
    (CUmemGenericAllocationHandle * handle, size_t length, const CUmemAllocationProp* properties,            \
     unsigned long long flags),                                                                              \
    (handle, length, properties, flags))                                                                     \
  X(MemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle,                            \
    (CUmemAllocationProp * properties, CUmemGenericAllocationHandle handle), (properties, handle))           \
  X(MemRelease, cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))                               \
  X(MemAddressReserve, cuMemAddressReserve,                                                                  \
    (CUdeviceptr * address, size_t length, size_t alignment, CUdeviceptr at, unsigned long long flags),      \
    (address, length, alignment, at, flags))                                                                 \
  X(MemAddressFree, cuMemAddressFree, (CUdeviceptr address, size_t length), (address, length))               \
  X(MemMap, cuMemMap,                                                                                        \
    (CUdeviceptr address, size_t length, size_t offset, CUmemGenericAllocationHandle handle,                 \
     unsigned long long flags),                                                                              \
    (address, length, offset, handle, flags))                                                                \
  X(MemUnmap, cuMemUnmap, (CUdeviceptr address, size_t length), (address, length))                           \
  X(MemSetAccess, cuMemSetAccess,                                                                            \
    (CUdeviceptr address, size_t length, const CUmemAccessDesc* access, size_t count),                       \
    (address, length, access, count))                                                                        \
  X(MemRetainAllocationHandle, cuMemRetainAllocationHandle,                                                  \
    (CUmemGenericAllocationHandle * handle, void* address), (handle, address))                               \
  X(MemExportToShareableHandle, cuMemExportToShareableHandle,                                                \
    (void* shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,                   \
     unsigned long long flags),                                                                              \
    (shareable, handle, type, flags))                                                                        \
  X(MemImportFromShareableHandle, cuMemImportFromShareableHandle,                                            \
    (CUmemGenericAllocationHandle * handle, void* shareable, CUmemAllocationHandleType type),                \
    (handle, shareable, type))                                                                               \
  X(StreamCreateWithPriority, cuStreamCreateWithPriority,                                                    \
    (CUstream * stream, unsigned int flags, int priority), (stream, flags, priority))                        \
  X(StreamDestroy, cuStreamDestroy_v2, (CUstream stream), (stream))                                          \
  X(StreamIsCapturing, cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus * status),               \
    (stream, status))                                                                                        \
  X(StreamWaitEvent, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags),                \
    (stream, event, flags))                                                                                  \
  X(EventCreate, cuEventCreate, (CUevent * event, unsigned int flags), (event, flags))                       \
  X(EventDestroy, cuEventDestroy_v2, (CUevent event), (event))                                               \
  X(EventRecord, cuEventRecord, (CUevent event, CUstream stream), (event, stream))                           \
  X(EventQuery, cuEventQuery, (CUevent event), (event))                                                      \
  X(EventSynchronize, cuEventSynchronize, (CUevent event), (event))                                          \
  X(MemcpyAsync, cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t length, CUstream stream),          \
    (to, from, length, stream))                                                                              \
  X(MemsetD8Async, cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t length, CUstream stream),   \
    (to, value, length, stream))                                                                             \
  X(ModuleLoadDataEx, cuModuleLoadDataEx,                                                                    \
    (CUmodule * module, const void* image, unsigned int option_count, CUjit_option* options, void** values), \
    (module, image, option_count, options, values))                                                          \
  X(ModuleUnload, cuModuleUnload, (CUmodule module), (module))                                               \
  X(ModuleGetFunction, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name),      \
    (function, module, name))                                                                                \
  X(LaunchKernel, cuLaunchKernel,                                                                            \
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,                     \
     unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,            \
     CUstream stream, void** parameters, void** extra),                                                      \
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra))

#define WC_CUDA_WANTED(X)                                                                                    \
  X(StreamWriteValue64, cuStreamWriteValue64_v2,                                                             \
    (CUstream stream, CUdeviceptr address, uint64_t value, unsigned int flags),                              \
    (stream, address, value, flags))                                                                         \
  X(MemGetHandleForAddressRange, cuMemGetHandleForAddressRange,                                              \
    (void* handle, CUdeviceptr address, size_t length, CUmemRangeHandleType type, unsigned long long flags), \
    (handle, address, length, type, flags))

namespace weightcast::drivers {

/// cuMemcpyBatchAsync of CUDA 12.8, and of 13.0.
using MemcpyBatchAsync12 = CUresult(CUdeviceptr* to, CUdeviceptr* from, size_t* lengths, size_t count,
                                    CUmemcpyAttributes* attributes, size_t* firsts, size_t attribute_count,
                                    size_t* failed, CUstream stream);
using MemcpyBatchAsync13 = CUresult(CUdeviceptr* to, CUdeviceptr* from, size_t* lengths, size_t count,
                                    CUmemcpyAttributes* attributes, size_t* firsts, size_t attribute_count,
                                    CUstream stream);
/// cuGetProcAddress_v2: finds a function in the form that a version of CUDA has.
using GetProcAddress = CUresult(const char* symbol, void** function, int version, uint64_t flags,
                                CUdriverProcAddressQueryResult* status);

}  // namespace weightcast::drivers
