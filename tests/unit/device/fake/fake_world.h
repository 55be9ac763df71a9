#pragma once

#include <gtest/gtest.h>

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

inline std::byte* Pointer(drivers::CUdeviceptr address) { return reinterpret_cast<std::byte*>(address); }
inline drivers::CUdeviceptr Number(const std::byte* pointer) {
  return reinterpret_cast<drivers::CUdeviceptr>(pointer);
}
inline Memory OfDevice(drivers::CUdeviceptr address, uint64_t length, int ordinal = 0) {
  return {.kind = MemoryKind::kDevice, .device = ordinal, .address = Pointer(address), .length = length};
}

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
  }

  /// Inline: worker and device, until neither has anything to do.
  void Settle(uint64_t seed = 1) {
    fake_cuda_seed(seed);
    bool more = true;
    while (more) {
      more = fake_cuda_step(0) != 0;
      more = worker->Step() || more;
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
    if (fake_cuda_gpu_process() == 0) worker->Step();
    while (!done.load(std::memory_order_acquire)) std::this_thread::yield();
    return std::move(*result);
  }

  Host host;
  std::shared_ptr<Gpus> gpus;
  std::shared_ptr<Worker> worker;
  std::shared_ptr<Mappings> mappings;
};

}  // namespace weightcast::device
