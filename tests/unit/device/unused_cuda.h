#pragma once

#include "drivers/cuda/cuda.h"

namespace weightcast::device {

/// The functions of the driver that src/device does not call.
class UnusedCuda : public drivers::Cuda {
  static constexpr drivers::CUresult kNo = drivers::CUDA_ERROR_NOT_SUPPORTED;

 public:
  drivers::CUresult DriverGetVersion(int*) override { return kNo; }
  drivers::CUresult DeviceGetAttribute(int*, drivers::CUdevice_attribute, drivers::CUdevice) override {
    return kNo;
  }
  drivers::CUresult DeviceGetPCIBusId(char*, int, drivers::CUdevice) override { return kNo; }
  drivers::CUresult DeviceCanAccessPeer(int*, drivers::CUdevice, drivers::CUdevice) override { return kNo; }
  drivers::CUresult DeviceGetP2PAttribute(int*, drivers::CUdevice_P2PAttribute, drivers::CUdevice,
                                          drivers::CUdevice) override {
    return kNo;
  }
  drivers::CUresult CtxGetCurrent(drivers::CUcontext*) override { return kNo; }
  drivers::CUresult MemGetInfo(size_t*, size_t*) override { return kNo; }
  drivers::CUresult MemGetHandleForAddressRange(void*, drivers::CUdeviceptr, size_t,
                                                drivers::CUmemRangeHandleType, unsigned long long) override {
    return kNo;
  }
  drivers::CUresult FlushGPUDirectRDMAWrites(drivers::CUflushGPUDirectRDMAWritesTarget,
                                             drivers::CUflushGPUDirectRDMAWritesScope) override {
    return kNo;
  }
  drivers::CUresult MemCreate(drivers::CUmemGenericAllocationHandle*, size_t,
                              const drivers::CUmemAllocationProp*, unsigned long long) override {
    return kNo;
  }
  drivers::CUresult MemGetAllocationGranularity(size_t*, const drivers::CUmemAllocationProp*,
                                                drivers::CUmemAllocationGranularity_flags) override {
    return kNo;
  }
  drivers::CUresult MemGetAllocationPropertiesFromHandle(drivers::CUmemAllocationProp*,
                                                         drivers::CUmemGenericAllocationHandle) override {
    return kNo;
  }
  drivers::CUresult StreamWaitEvent(drivers::CUstream, drivers::CUevent, unsigned int) override {
    return kNo;
  }
  drivers::CUresult EventSynchronize(drivers::CUevent) override { return kNo; }
  drivers::CUresult MemsetD8Async(drivers::CUdeviceptr, unsigned char, size_t, drivers::CUstream) override {
    return kNo;
  }
  drivers::CUresult ModuleLoadDataEx(drivers::CUmodule*, const void*, unsigned int, drivers::CUjit_option*,
                                     void**) override {
    return kNo;
  }
  drivers::CUresult ModuleUnload(drivers::CUmodule) override { return kNo; }
  drivers::CUresult ModuleGetFunction(drivers::CUfunction*, drivers::CUmodule, const char*) override {
    return kNo;
  }
  drivers::CUresult LaunchKernel(drivers::CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
                                 unsigned int, unsigned int, unsigned int, drivers::CUstream, void**,
                                 void**) override {
    return kNo;
  }
};

}  // namespace weightcast::device
