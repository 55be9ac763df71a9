#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "drivers/cuda/cuda.h"
#include "unit/device/unused_cuda.h"

namespace weightcast::device {

using namespace drivers;  // NOLINT: the driver's names are its own.

/// A driver inside the test. Device memory is host memory; streams are queues of which Step runs one entry of
/// one stream. Everything is under one lock, which a blocked call does not hold.
class SimpleCuda final : public UnusedCuda {
 public:
  struct Stream {
    std::deque<std::function<void()>> work;
    bool captured = false;
  };
  struct Range {
    size_t length = 0;
    uint64_t id = 0;
    int ordinal = 0;
    unsigned type = CU_MEMORYTYPE_DEVICE;
    bool managed = false;
    bool legacy = true;
    uint64_t handle_types = 0;
    void* pool = nullptr;
    bool accessible = true;
    uint64_t handle = 0;
    bool imported = false;
  };

  // --- Controls
  bool batch = false;
  bool write_value = true;
  bool active = true;
  int devices = 2;
  /// The next call of this name fails so.
  void FailNext(const std::string& call, CUresult result) {
    Locked([&] { fail_[call] = result; });
  }
  /// From now on every call fails so, and nothing runs.
  void Lose(CUresult result) {
    Locked([&] { lost_ = result; });
  }
  /// Calls of this name wait until Unblock.
  void Block(const std::string& call) {
    Locked([&] { blocked_ = call; });
  }
  void Unblock() {
    Locked([&] { blocked_.clear(); });
    changed_.notify_all();
  }
  [[nodiscard]] bool someone_blocked() const { return waiting_.load() > 0; }
  [[nodiscard]] int calls() const { return calls_.load(); }
  [[nodiscard]] int64_t live() const { return live_.load(); }
  /// Calls without the right context, or in a capture mode that disturbs others.
  [[nodiscard]] int misuses() const { return misuses_.load(); }
  [[nodiscard]] int batches() const { return batches_.load(); }
  [[nodiscard]] int contexts() const { return contexts_.load(); }

  /// One entry of one stream, by the seed; false: all streams are empty.
  bool Step(uint32_t seed);
  void RunAll() {
    while (Step(0)) {
    }
  }
  std::byte* Device(size_t bytes, int ordinal = 0);
  void FreeDevice(std::byte* address);
  /// `count` pages of 64 KiB, each with a handle of these types.
  std::byte* Pages(size_t count, uint64_t handle_types);
  void RemapPage(std::byte* address);
  void FreePages(std::byte* address, size_t count);
  Range& RangeOf(std::byte* address) { return ranges_.at(reinterpret_cast<CUdeviceptr>(address)); }
  static constexpr size_t kPage = 64 << 10;

  CUresult Init(unsigned) override;
  CUresult GetErrorName(CUresult, const char**) override;
  CUresult GetErrorString(CUresult, const char**) override;
  CUresult DeviceGet(CUdevice*, int) override;
  CUresult DeviceGetCount(int*) override;
  CUresult DeviceGetName(char*, int, CUdevice) override;
  CUresult DeviceGetUuid(CUuuid*, CUdevice) override;
  CUresult DevicePrimaryCtxGetState(CUdevice, unsigned*, int*) override;
  CUresult DevicePrimaryCtxRetain(CUcontext*, CUdevice) override;
  CUresult DevicePrimaryCtxRelease(CUdevice) override;
  CUresult CtxPushCurrent(CUcontext) override;
  CUresult CtxPopCurrent(CUcontext*) override;
  CUresult CtxGetStreamPriorityRange(int*, int*) override;
  CUresult CtxEnablePeerAccess(CUcontext, unsigned) override;
  CUresult ThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) override;
  CUresult PointerGetAttributes(unsigned, CUpointer_attribute*, void**, CUdeviceptr) override;
  CUresult MemGetAddressRange(CUdeviceptr*, size_t*, CUdeviceptr) override;
  CUresult MemAlloc(CUdeviceptr*, size_t) override;
  CUresult MemFree(CUdeviceptr) override;
  CUresult MemHostRegister(void*, size_t, unsigned) override;
  CUresult MemHostUnregister(void*) override;
  CUresult MemHostGetDevicePointer(CUdeviceptr*, void*, unsigned) override;
  CUresult MemHostAlloc(void**, size_t, unsigned) override;
  CUresult MemFreeHost(void*) override;
  CUresult IpcGetMemHandle(CUipcMemHandle*, CUdeviceptr) override;
  CUresult IpcOpenMemHandle(CUdeviceptr*, CUipcMemHandle, unsigned) override;
  CUresult IpcCloseMemHandle(CUdeviceptr) override;
  CUresult MemRelease(CUmemGenericAllocationHandle) override;
  CUresult MemAddressReserve(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long) override;
  CUresult MemAddressFree(CUdeviceptr, size_t) override;
  CUresult MemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) override;
  CUresult MemUnmap(CUdeviceptr, size_t) override;
  CUresult MemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) override;
  CUresult MemRetainAllocationHandle(CUmemGenericAllocationHandle*, void*) override;
  CUresult MemExportToShareableHandle(void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                                      unsigned long long) override;
  CUresult MemImportFromShareableHandle(CUmemGenericAllocationHandle*, void*,
                                        CUmemAllocationHandleType) override;
  CUresult StreamCreateWithPriority(CUstream*, unsigned, int) override;
  CUresult StreamDestroy(CUstream) override;
  CUresult StreamIsCapturing(CUstream, CUstreamCaptureStatus*) override;
  CUresult StreamWriteValue64(CUstream, CUdeviceptr, uint64_t, unsigned) override;
  CUresult EventCreate(CUevent*, unsigned) override;
  CUresult EventDestroy(CUevent) override;
  CUresult EventRecord(CUevent, CUstream) override;
  CUresult EventQuery(CUevent) override;
  CUresult MemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream) override;
  CUresult MemcpyBatchAsync(const CUdeviceptr*, const CUdeviceptr*, const size_t*, size_t,
                            CUmemcpyAttributes*, size_t*, size_t, CUstream) override;

 private:
  template <typename Function>
  void Locked(Function function) {
    const std::lock_guard lock(mutex_);
    function();
  }
  CUresult Enter(const char* call, bool needs_context = true);
  std::pair<const CUdeviceptr, Range>* Find(CUdeviceptr address);
  CUdeviceptr Add(size_t length, const Range& range, CUdeviceptr at = 0);
  static thread_local std::vector<CUcontext> current;
  static thread_local CUstreamCaptureMode mode;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, CUresult> fail_;
  std::string blocked_;
  CUresult lost_ = 0;
  std::atomic<int> waiting_{0};
  std::atomic<int> calls_{0};
  std::atomic<int64_t> live_{0};
  std::atomic<int> misuses_{0};
  std::atomic<int> contexts_{0};
  std::atomic<int> batches_{0};
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<CUevent, int> events_;  ///< Records that are not over.
  std::map<CUdeviceptr, Range> ranges_;
  std::map<uint64_t, int> handles_;  ///< References.
  uint64_t next_ = 1000;
};

}  // namespace weightcast::device
