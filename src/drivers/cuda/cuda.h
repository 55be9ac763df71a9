#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "drivers/cuda/abi.h"
#include "weightcast/status.h"

namespace weightcast::drivers {

/// The part of libcuda that we use, as a table that a test can replace. Each function is libcuda's own of
/// that name, in its newest form: arguments and results as in the driver API's manual. A library must have
/// all but those that are marked *wanted*, which give CUDA_ERROR_NOT_SUPPORTED where it does not have them.
/// No cuMulticast function may be added: it can put a host's GPUs out of service.
///
/// Threads: as libcuda, every function from any thread.
class Cuda {
 public:
  virtual ~Cuda() = default;

  virtual CUresult Init(unsigned int flags) = 0;
  /// 1000 * major + 10 * minor of the newest CUDA that the driver knows.
  virtual CUresult DriverGetVersion(int* version) = 0;
  virtual CUresult GetErrorName(CUresult error, const char** name) = 0;
  virtual CUresult GetErrorString(CUresult error, const char** words) = 0;

  // --- Devices and contexts
  virtual CUresult DeviceGet(CUdevice* device, int ordinal) = 0;
  virtual CUresult DeviceGetCount(int* count) = 0;
  virtual CUresult DeviceGetName(char* name, int length, CUdevice device) = 0;
  virtual CUresult DeviceGetUuid(CUuuid* uuid, CUdevice device) = 0;
  virtual CUresult DeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) = 0;
  virtual CUresult DeviceGetPCIBusId(char* id, int length, CUdevice device) = 0;
  virtual CUresult DeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) = 0;
  virtual CUresult DeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice from,
                                         CUdevice to) = 0;
  virtual CUresult DevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) = 0;
  virtual CUresult DevicePrimaryCtxRetain(CUcontext* context, CUdevice device) = 0;
  virtual CUresult DevicePrimaryCtxRelease(CUdevice device) = 0;
  virtual CUresult CtxPushCurrent(CUcontext context) = 0;
  virtual CUresult CtxPopCurrent(CUcontext* context) = 0;
  virtual CUresult CtxGetCurrent(CUcontext* context) = 0;
  virtual CUresult CtxGetStreamPriorityRange(int* least, int* greatest) = 0;
  virtual CUresult CtxEnablePeerAccess(CUcontext peer, unsigned int flags) = 0;
  virtual CUresult ThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) = 0;

  // --- Memory
  virtual CUresult PointerGetAttributes(unsigned int count, CUpointer_attribute* names, void** values,
                                        CUdeviceptr address) = 0;
  virtual CUresult MemGetAddressRange(CUdeviceptr* base, size_t* length, CUdeviceptr address) = 0;
  virtual CUresult MemGetInfo(size_t* free, size_t* total) = 0;
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
  /// A descriptor of a dma-buf, into an int. Wanted.
  virtual CUresult MemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t length,
                                               CUmemRangeHandleType type, unsigned long long flags) = 0;
  /// Wanted.
  virtual CUresult FlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                            CUflushGPUDirectRDMAWritesScope scope) = 0;

  // --- Memory in parts: handles, addresses, mappings
  virtual CUresult MemCreate(CUmemGenericAllocationHandle* handle, size_t length,
                             const CUmemAllocationProp* properties, unsigned long long flags) = 0;
  virtual CUresult MemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                               CUmemAllocationGranularity_flags option) = 0;
  virtual CUresult MemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                        CUmemGenericAllocationHandle handle) = 0;
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
  virtual CUresult StreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) = 0;
  /// Wanted.
  virtual CUresult StreamWriteValue64(CUstream stream, CUdeviceptr address, uint64_t value,
                                      unsigned int flags) = 0;
  virtual CUresult EventCreate(CUevent* event, unsigned int flags) = 0;
  virtual CUresult EventDestroy(CUevent event) = 0;
  virtual CUresult EventRecord(CUevent event, CUstream stream) = 0;
  virtual CUresult EventQuery(CUevent event) = 0;
  virtual CUresult EventSynchronize(CUevent event) = 0;
  virtual CUresult MemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t length, CUstream stream) = 0;
  virtual CUresult MemsetD8Async(CUdeviceptr to, unsigned char value, size_t length, CUstream stream) = 0;
  /// Wanted: from CUDA 12.8 on. In the form of CUDA 13.0: an error does not say which copy it was.
  virtual CUresult MemcpyBatchAsync(const CUdeviceptr* to, const CUdeviceptr* from, const size_t* lengths,
                                    size_t count, CUmemcpyAttributes* attributes, size_t* firsts,
                                    size_t attribute_count, CUstream stream) = 0;

  // --- Kernels
  /// The image is PTX text with a zero behind it, or a cubin.
  virtual CUresult ModuleLoadDataEx(CUmodule* module, const void* image, unsigned int option_count,
                                    CUjit_option* options, void** values) = 0;
  virtual CUresult ModuleUnload(CUmodule module) = 0;
  virtual CUresult ModuleGetFunction(CUfunction* function, CUmodule module, const char* name) = 0;
  virtual CUresult LaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                void** parameters, void** extra) = 0;
};

enum class CudaUse {
  kIfInProcess,  ///< For a call that may have nothing to do with GPUs.
  kAsked,        ///< The user wants a GPU, or wants to know why there is none.
};

/// The CUDA driver of this machine, loaded once: the library that WEIGHTCAST_CUDA_LIBRARY names; else
/// libcuda.so.1 if this process has loaded it; else, if a GPU is asked for, libcuda.so.1 all the same.
/// kUnavailable says what is missing and what to do about it. That a machine has the library does not mean
/// that it has a device, and cuInit has not been called. Any thread; 1 us where there is none.
Result<std::shared_ptr<Cuda>> LoadCuda(CudaUse use);

}  // namespace weightcast::drivers
