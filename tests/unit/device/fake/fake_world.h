#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "device/copy_queue.h"
#include "device/gpus.h"
#include "device/mapping.h"
#include "device/worker.h"
#include "fake_cuda/host.h"

namespace weightcast::device {

using fake_cuda::Host;
using fake_cuda::kMiB;
using fake_cuda::kPage;

inline constexpr int kDescriptor = drivers::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
inline constexpr int kFabricType = drivers::CU_MEM_HANDLE_TYPE_FABRIC;

inline std::byte* Pointer(drivers::CUdeviceptr address) { return reinterpret_cast<std::byte*>(address); }
inline drivers::CUdeviceptr Number(const std::byte* pointer) {
  return reinterpret_cast<drivers::CUdeviceptr>(pointer);
}
inline Memory OfDevice(drivers::CUdeviceptr address, uint64_t length, int ordinal = 0) {
  return {.kind = MemoryKind::kDevice, .device = ordinal, .address = Pointer(address), .length = length};
}
inline bool Readable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&entry, 1, 0) == 1;
}

/// While it exists, this thread has no context and would spoil a capture, as one that never used CUDA: the
/// fake ends the program where a call relies on its caller's context.
class NoContext {
 public:
  explicit NoContext(drivers::Cuda& cuda) : cuda_(cuda) {
    cuda_.CtxGetCurrent(&context_);
    if (context_ != drivers::CUcontext{}) cuda_.CtxPopCurrent(&context_);
    cuda_.ThreadExchangeStreamCaptureMode(&mode_);
  }
  NoContext(const NoContext&) = delete;
  NoContext& operator=(const NoContext&) = delete;
  ~NoContext() {
    cuda_.ThreadExchangeStreamCaptureMode(&mode_);
    if (context_ != drivers::CUcontext{}) cuda_.CtxPushCurrent(context_);
  }

 private:
  drivers::Cuda& cuda_;
  drivers::CUcontext context_{};
  drivers::CUstreamCaptureMode mode_ = drivers::CU_STREAM_CAPTURE_MODE_GLOBAL;
};

/// src/device on the fake driver, as a process that uses device 0. At its end nothing of the driver's may
/// live.
struct FakeWorld {
  explicit FakeWorld(const std::string& config = "", Worker::Mode mode = Worker::Mode::kCalled)
      : host(config) {
    gpus = Gpus::Create(host.cuda).value();
    worker = Worker::Create(gpus->Retain(0).value(), mode).value();
    mappings = std::make_shared<Mappings>(gpus, worker->health());
  }
  FakeWorld(const FakeWorld&) = delete;
  FakeWorld& operator=(const FakeWorld&) = delete;
  ~FakeWorld() {
    mappings.reset();
    worker.reset();
    gpus.reset();
    EXPECT_EQ(fake_cuda_disturbing(), 0U) << "calls that would have spoilt a capture";
    EXPECT_TRUE(fake_cuda_gpu_process() != 0 || fake_cuda_live(0).exported == 0) << "descriptors are left";
  }

  /// Mode::kCalled: one turn of the worker.
  bool StepWorker() {
    const NoContext none(*host.cuda);
    return worker->Step();
  }
  /// Inline: worker and device, until neither has anything to do.
  void Settle(uint64_t seed = 1) {
    fake_cuda_seed(seed);
    bool more = true;
    while (more) {
      more = fake_cuda_step(0) != 0;
      more = StepWorker() || more;
    }
  }
  /// Runs a task of the worker, and says what it returned.
  template <typename Function>
  auto OnWorker(Function function) {
    std::unique_ptr<decltype(function())> result;
    std::atomic<bool> done{false};
    worker->Run([&] {
      result = std::make_unique<decltype(function())>(function());
      done.store(true, std::memory_order_release);
    });
    if (fake_cuda_gpu_process() == 0) StepWorker();
    while (!done.load(std::memory_order_acquire)) std::this_thread::yield();
    return std::move(*result);
  }
  [[nodiscard]] std::shared_ptr<const Context> context() const { return worker->health()->shared_context(); }

  Host host;
  std::shared_ptr<Gpus> gpus;
  std::shared_ptr<Worker> worker;
  std::shared_ptr<Mappings> mappings;
};

/// A context of device 1 that the user of the process has, and that is current in no thread.
class SecondDevice {
 public:
  explicit SecondDevice(Host& host) : host_(host) {
    EXPECT_EQ(host.cuda->DevicePrimaryCtxRetain(&context_, 1), drivers::CUDA_SUCCESS);
  }
  SecondDevice(const SecondDevice&) = delete;
  SecondDevice& operator=(const SecondDevice&) = delete;
  ~SecondDevice() { EXPECT_EQ(host_.cuda->DevicePrimaryCtxRelease(1), drivers::CUDA_SUCCESS); }

  template <typename Function>
  auto Inside(Function function) {
    drivers::CUcontext popped{};
    EXPECT_EQ(host_.cuda->CtxPushCurrent(context_), drivers::CUDA_SUCCESS);
    auto result = function();
    EXPECT_EQ(host_.cuda->CtxPopCurrent(&popped), drivers::CUDA_SUCCESS);
    return result;
  }
  drivers::CUdeviceptr Alloc(size_t length) {
    return Inside([&] { return host_.Alloc(length); });
  }
  void Free(drivers::CUdeviceptr address) {
    EXPECT_EQ(Inside([&] { return host_.cuda->MemFree(address); }), drivers::CUDA_SUCCESS);
  }

 private:
  Host& host_;
  drivers::CUcontext context_{};
};

/// Mapped pages of 2 MiB with a handle each, as torch's expandable segments are.
class Pages {
 public:
  Pages(Host& host, size_t count, int types, int device = 0)
      : host_(host), count_(count), device_(device), base_(host.Reserve(count * kPage)) {
    for (size_t i = 0; i < count; ++i) Map(i, types);
    EXPECT_EQ(host.Allow(base_, count * kPage, device), drivers::CUDA_SUCCESS);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    EXPECT_EQ(host_.cuda->MemUnmap(base_, count_ * kPage), drivers::CUDA_SUCCESS);
    EXPECT_EQ(host_.cuda->MemAddressFree(base_, count_ * kPage), drivers::CUDA_SUCCESS);
  }
  [[nodiscard]] drivers::CUdeviceptr base() const { return base_; }
  [[nodiscard]] drivers::CUdeviceptr At(size_t page) const { return base_ + page * kPage; }
  [[nodiscard]] size_t length() const { return count_ * kPage; }
  /// Other memory at the address of one page.
  void Remap(size_t page, int types, bool access = true) {
    EXPECT_EQ(host_.cuda->MemUnmap(At(page), kPage), drivers::CUDA_SUCCESS);
    Map(page, types);
    EXPECT_TRUE(!access || host_.Allow(At(page), kPage, device_) == drivers::CUDA_SUCCESS);
  }

 private:
  void Map(size_t page, int types) {
    const auto handle = host_.Create(kPage, types, device_);
    EXPECT_EQ(host_.cuda->MemMap(At(page), kPage, 0, handle, 0), drivers::CUDA_SUCCESS);
    EXPECT_EQ(host_.cuda->MemRelease(handle), drivers::CUDA_SUCCESS);
  }
  Host& host_;
  const size_t count_;
  const int device_;
  const drivers::CUdeviceptr base_;
};

}  // namespace weightcast::device
