#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "drivers/cuda/cuda.h"
#include "drivers/cuda/load.h"
#include "fake_cuda/fake_cuda.h"

/// What the tests of the fake driver share: one process of a machine, as a program that uses CUDA.
namespace weightcast::fake_cuda {

using namespace drivers;  // NOLINT: the driver's names are its own.

#define CU_OK(call) ASSERT_EQ((call), CUDA_SUCCESS)
inline constexpr size_t kMiB = 1 << 20;
inline constexpr size_t kPage = 2 * kMiB;
inline constexpr size_t kPiece = 4096;
inline constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

inline CUdeviceptr Number(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

inline std::shared_ptr<Cuda> LoadFake() { return LoadCudaFrom(FAKE_CUDA_LIBRARY, "").value(); }

/// Joins the machine of `config`, with device 0 current. At its end nothing may live.
class Host {
 public:
  explicit Host(const std::string& config = "") {
    fake_cuda_start(config.c_str());
    cuda = LoadFake();
    Check(cuda->Init(0), "cuInit");
    CUcontext context{};
    Check(cuda->DevicePrimaryCtxRetain(&context, 0), "retain");
    cuda->CtxPushCurrent(context);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuda->ThreadExchangeStreamCaptureMode(&mode);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host() {
    CUcontext context{};
    cuda->CtxPopCurrent(&context);
    if (!leaves_things) cuda->DevicePrimaryCtxRelease(0);
    const uint64_t left = fake_cuda_stop();
    EXPECT_TRUE(leaves_things || left == 0) << left << " objects are left";
  }

  CUdeviceptr Alloc(size_t length) {
    CUdeviceptr address = 0;
    Check(cuda->MemAlloc(&address, length), "cuMemAlloc");
    return address;
  }
  CUstream Stream() {
    CUstream stream{};
    Check(cuda->StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), "cuStreamCreate");
    return stream;
  }
  CUevent Event() {
    CUevent event{};
    Check(cuda->EventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    return event;
  }
  std::byte* Pinned(size_t length) {
    void* host = nullptr;
    Check(cuda->MemHostAlloc(&host, length, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    return static_cast<std::byte*>(host);
  }
  /// Memory of cuMemCreate, with its handle.
  CUmemGenericAllocationHandle Create(size_t length, int types, int device = 0) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
    properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    CUmemGenericAllocationHandle handle = 0;
    Check(cuda->MemCreate(&handle, length, &properties, 0), "cuMemCreate");
    return handle;
  }
  CUdeviceptr Reserve(size_t length) {
    CUdeviceptr address = 0;
    Check(cuda->MemAddressReserve(&address, length, 0, 0, 0), "cuMemAddressReserve");
    return address;
  }
  CUresult Allow(CUdeviceptr address, size_t length, int device = 0,
                 CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    const CUmemAccessDesc access{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                 .flags = flags};
    return cuda->MemSetAccess(address, length, &access, 1);
  }

  /// Waits for everything in the stream.
  void Finish(CUstream stream) {
    const CUevent event = Event();
    Check(cuda->EventRecord(event, stream), "cuEventRecord");
    Check(cuda->EventSynchronize(event), "cuEventSynchronize");
    Check(cuda->EventDestroy(event), "cuEventDestroy");
  }
  void Fill(CUdeviceptr to, unsigned char value, size_t length) {
    const CUstream stream = Stream();
    Check(cuda->MemsetD8Async(to, value, length, stream), "cuMemsetD8Async");
    Finish(stream);
    Check(cuda->StreamDestroy(stream), "cuStreamDestroy");
  }
  std::vector<unsigned char> Read(CUdeviceptr from, size_t length) {
    const CUstream stream = Stream();
    std::byte* const pinned = Pinned(length);
    Check(cuda->MemcpyAsync(reinterpret_cast<CUdeviceptr>(pinned), from, length, stream), "cuMemcpyAsync");
    Finish(stream);
    std::vector<unsigned char> bytes(length);
    std::memcpy(bytes.data(), pinned, length);
    Check(cuda->MemFreeHost(pinned), "cuMemFreeHost");
    Check(cuda->StreamDestroy(stream), "cuStreamDestroy");
    return bytes;
  }
  bool Holds(CUdeviceptr from, unsigned char value, size_t length) {
    return Read(from, length) == std::vector<unsigned char>(length, value);
  }

  std::shared_ptr<Cuda> cuda;
  bool leaves_things = false;  ///< For tests in which a context is lost.

 private:
  void Check(CUresult result, const char* what) { EXPECT_EQ(result, CUDA_SUCCESS) << what; }
};

}  // namespace weightcast::fake_cuda
