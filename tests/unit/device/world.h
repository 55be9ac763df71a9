#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <span>
#include <vector>

#include "device/copy_queue.h"
#include "device/gpus.h"
#include "device/mapping.h"
#include "device/worker.h"
#include "unit/device/simple_cuda.h"

namespace weightcast::device {

/// Two devices, and a worker of the first that runs when the test says. At its end nothing of the driver's
/// may be left, and no call may have been made outside of a context.
struct World {
  explicit World(Worker::Mode mode = Worker::Mode::kCalled) {
    gpus = Gpus::Create(cuda).value();
    worker = Worker::Create(gpus->Retain(0).value(), mode).value();
    mappings = std::make_shared<Mappings>(gpus, worker->health());
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    mappings.reset();
    worker.reset();
    gpus.reset();
    EXPECT_EQ(cuda->live(), 0) << "objects of the driver are left";
    EXPECT_EQ(cuda->contexts(), 0) << "contexts are left";
    EXPECT_EQ(cuda->misuses(), 0) << "calls without a context, or in a strict capture mode";
  }

  /// Worker and device, until neither has anything to do.
  void Settle(uint32_t seed = 0) {
    bool more = true;
    while (more) {
      more = cuda->Step(seed++);
      more = worker->Step() || more;
    }
  }
  /// Runs a task of the worker, and says what it returned.
  template <typename Function>
  auto OnWorker(Function function) {
    std::unique_ptr<decltype(function())> result;
    worker->Run([&] { result = std::make_unique<decltype(function())>(function()); });
    worker->Step();
    return std::move(*result);
  }

  std::shared_ptr<SimpleCuda> cuda = std::make_shared<SimpleCuda>();
  std::shared_ptr<Gpus> gpus;
  std::shared_ptr<Worker> worker;
  std::shared_ptr<Mappings> mappings;
};

inline bool Readable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&entry, 1, 0) == 1;
}

inline Memory OfDevice(std::byte* address, uint64_t length, int device = 0) {
  return {.kind = MemoryKind::kDevice, .device = device, .address = address, .length = length};
}

}  // namespace weightcast::device
