#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "fake_cuda/host.h"

namespace weightcast::fake_cuda {
namespace {

TEST(FakeCudaFaults, TheNthCallOfANameFails) {
  Host host;
  const CUdeviceptr memory = host.Alloc(100);
  fake_cuda_fail(0, "cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY);
  fake_cuda_fail(0, "cuEventCreate", 1, CUDA_ERROR_UNKNOWN);
  const CUdeviceptr first = host.Alloc(100);
  CUdeviceptr second = 0;
  EXPECT_EQ(host.cuda->MemAlloc(&second, 100), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(second, 0U);
  CUevent event{};
  EXPECT_EQ(host.cuda->EventCreate(&event, 0), CUDA_ERROR_UNKNOWN);
  second = host.Alloc(100);
  for (const CUdeviceptr each : {memory, first, second}) CU_OK(host.cuda->MemFree(each));
  const char* name = nullptr;
  CU_OK(host.cuda->GetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name));
  EXPECT_STREQ(name, "CUDA_ERROR_OUT_OF_MEMORY");
}

TEST(FakeCudaFaults, ABlockedCallHoldsUpTheOthersOfItsProcess) {
  Host host;
  const CUevent event = host.Event();
  fake_cuda_block(0, "cuMemAlloc", 1, 100);
  CUcontext context{};
  CU_OK(host.cuda->CtxGetCurrent(&context));
  const auto begin = std::chrono::steady_clock::now();
  std::thread allocating([&] {
    host.cuda->CtxPushCurrent(context);
    CUdeviceptr memory = 0;
    EXPECT_EQ(host.cuda->MemAlloc(&memory, 100), CUDA_SUCCESS);
    EXPECT_EQ(host.cuda->MemFree(memory), CUDA_SUCCESS);
  });
  while (fake_cuda_blocked(0) == 0) std::this_thread::yield();
  CU_OK(host.cuda->EventQuery(event));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(100));
  allocating.join();
  CU_OK(host.cuda->EventDestroy(event));
}

TEST(FakeCudaFaults, AContextIsLostInTheMiddleOfACopy) {
  Host host;
  host.leaves_things = true;
  const CUstream stream = host.Stream();
  const CUevent event = host.Event();
  const CUdeviceptr memory = host.Alloc(4 * kPiece);
  std::byte* const pinned = host.Pinned(4 * kPiece + 8);
  std::memset(pinned, 0, 4 * kPiece + 8);
  const auto target = reinterpret_cast<CUdeviceptr>(pinned);
  fake_cuda_lose(0, 0, CUDA_ERROR_ECC_UNCORRECTABLE, 2);
  CU_OK(host.cuda->MemcpyAsync(target, memory, 4 * kPiece, stream));
  CU_OK(host.cuda->StreamWriteValue64(stream, target + 4 * kPiece, 7, 0));
  CU_OK(host.cuda->EventRecord(event, stream));
  while (fake_cuda_step(0) != 0) {
  }
  EXPECT_EQ(std::count(pinned, pinned + 4 * kPiece, std::byte{0xCD}), static_cast<long>(2 * kPiece));
  EXPECT_EQ(pinned[4 * kPiece], std::byte{0}) << "a word was written behind the fault";

  // Every call says so, but the few that look, or take leave.
  EXPECT_EQ(host.cuda->EventQuery(event), CUDA_ERROR_ECC_UNCORRECTABLE);
  EXPECT_EQ(host.cuda->MemFree(memory), CUDA_ERROR_ECC_UNCORRECTABLE);
  EXPECT_EQ(host.cuda->EventSynchronize(event), CUDA_ERROR_ECC_UNCORRECTABLE);
  CUdeviceptr more = 0;
  EXPECT_EQ(host.cuda->MemAlloc(&more, 100), CUDA_ERROR_ECC_UNCORRECTABLE);
  CUpointer_attribute name = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  unsigned type = 0;
  void* value = &type;
  CU_OK(host.cuda->PointerGetAttributes(1, &name, &value, memory));
  CU_OK(host.cuda->DevicePrimaryCtxRelease(0));
  EXPECT_EQ(fake_cuda_live(0).bytes, 0U);
}

TEST(FakeCudaFaults, OtherDevicesGoOn) {
  Host host;
  CUcontext second{};
  CU_OK(host.cuda->DevicePrimaryCtxRetain(&second, 1));
  fake_cuda_lose(0, 1, CUDA_ERROR_ILLEGAL_ADDRESS, 0);
  const CUdeviceptr memory = host.Alloc(100);
  host.Fill(memory, 4, 100);
  EXPECT_TRUE(host.Holds(memory, 4, 100));
  CU_OK(host.cuda->MemFree(memory));
  CU_OK(host.cuda->CtxPushCurrent(second));
  CUevent event{};
  EXPECT_EQ(host.cuda->EventCreate(&event, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
  CU_OK(host.cuda->CtxPopCurrent(&second));
  CU_OK(host.cuda->DevicePrimaryCtxRelease(1));
}

TEST(FakeCudaFaults, AHeldDeviceRunsNothing) {
  Host host;
  const CUdeviceptr memory = host.Alloc(kPiece);
  const CUstream stream = host.Stream();
  fake_cuda_hold(0);
  CU_OK(host.cuda->MemsetD8Async(memory, 1, kPiece, stream));
  EXPECT_EQ(fake_cuda_step(0), 0);
  fake_cuda_release(-1);
  EXPECT_EQ(fake_cuda_step(0), 1);
  CU_OK(host.cuda->MemFree(memory));
  CU_OK(host.cuda->StreamDestroy(stream));
}

// --- Between devices

/// Memory on device 0 and on device 1, with a context of each.
struct Pair {
  explicit Pair(Host& owner) : cuda(*owner.cuda), near(owner.Alloc(kPiece)) {
    EXPECT_EQ(cuda.DevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuda.CtxPushCurrent(second), CUDA_SUCCESS);
    far = owner.Alloc(kPiece);
    owner.Fill(far, 0x21, kPiece);
    EXPECT_EQ(cuda.CtxPopCurrent(&second), CUDA_SUCCESS);
    const CUstream stream = owner.Stream();
    EXPECT_EQ(cuda.MemcpyAsync(near, far, kPiece, stream), CUDA_SUCCESS);
    owner.Finish(stream);
    EXPECT_EQ(cuda.StreamDestroy(stream), CUDA_SUCCESS);
  }
  ~Pair() {
    EXPECT_EQ(cuda.MemFree(near), CUDA_SUCCESS);
    EXPECT_EQ(cuda.CtxPushCurrent(second), CUDA_SUCCESS);
    EXPECT_EQ(cuda.MemFree(far), CUDA_SUCCESS);
    EXPECT_EQ(cuda.CtxPopCurrent(&second), CUDA_SUCCESS);
    EXPECT_EQ(cuda.DevicePrimaryCtxRelease(1), CUDA_SUCCESS);
  }
  Cuda& cuda;
  CUcontext second{};
  CUdeviceptr near;
  CUdeviceptr far = 0;
};

TEST(FakeCudaPeers, CopyFromDeviceToDevice) {
  Host host;
  const Pair pair(host);
  EXPECT_TRUE(host.Holds(pair.near, 0x21, kPiece));
}

TEST(FakeCudaPeers, MayLie) {
  Host host;
  fake_cuda_peer(1, 0, 2);
  const Pair pair(host);
  EXPECT_FALSE(host.Holds(pair.near, 0x21, kPiece));
  int can = 0;
  CU_OK(host.cuda->DeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1) << "whoever lies says that it works";
}

TEST(FakeCudaPeers, AreRefusedWhereThereIsNoWay) {
  Host host("gpus=3,peer=0-1");
  int can = 1;
  CU_OK(host.cuda->DeviceCanAccessPeer(&can, 0, 2));
  EXPECT_EQ(can, 0);
  CU_OK(host.cuda->DeviceCanAccessPeer(&can, 1, 0));
  EXPECT_EQ(can, 1);
  CU_OK(host.cuda->DeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 2));
  EXPECT_EQ(can, 0);
  const CUdeviceptr range = host.Reserve(kPage);
  const auto handle = host.Create(kPage, 1, 2);
  CU_OK(host.cuda->MemMap(range, kPage, 0, handle, 0));
  EXPECT_EQ(host.Allow(range, kPage, 0), CUDA_ERROR_INVALID_DEVICE);
  CU_OK(host.Allow(range, kPage, 2));
  CUcontext context{};
  CU_OK(host.cuda->DevicePrimaryCtxRetain(&context, 2));
  EXPECT_EQ(host.cuda->CtxEnablePeerAccess(context, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  CU_OK(host.cuda->DevicePrimaryCtxRelease(2));
  CU_OK(host.cuda->DevicePrimaryCtxRetain(&context, 1));
  CU_OK(host.cuda->CtxEnablePeerAccess(context, 0));
  EXPECT_EQ(host.cuda->CtxEnablePeerAccess(context, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  CU_OK(host.cuda->DevicePrimaryCtxRelease(1));
  CU_OK(host.cuda->MemUnmap(range, kPage));
  CU_OK(host.cuda->MemRelease(handle));
  CU_OK(host.cuda->MemAddressFree(range, kPage));
}

// --- Capture

TEST(FakeCudaCapture, ACallInTheGlobalModeSpoilsIt) {
  Host host;
  const CUstream captured = host.Stream();
  const CUevent event = host.Event();
  CUstreamCaptureStatus status{};
  ASSERT_EQ(fake_cuda_capture(captured, 1), 0);
  CU_OK(host.cuda->StreamIsCapturing(captured, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CU_OK(host.cuda->EventQuery(event));  // This thread's mode is relaxed.
  EXPECT_EQ(fake_cuda_disturbing(), 0U);
  EXPECT_EQ(fake_cuda_capture(captured, 0), 0);

  ASSERT_EQ(fake_cuda_capture(captured, 1), 0);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  CU_OK(host.cuda->ThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(host.cuda->EventQuery(event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(fake_cuda_disturbing(), 1U);
  CU_OK(host.cuda->StreamIsCapturing(captured, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(fake_cuda_capture(captured, 0), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CU_OK(host.cuda->ThreadExchangeStreamCaptureMode(&mode));
  CU_OK(host.cuda->EventDestroy(event));
  CU_OK(host.cuda->StreamDestroy(captured));
}

}  // namespace
}  // namespace weightcast::fake_cuda
