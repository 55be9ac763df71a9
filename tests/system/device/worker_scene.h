#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "contract/devices.h"
#include "trace/metrics.h"
#include "weightcast/worker.h"

namespace weightcast {

inline uint64_t Counted(std::string_view name) { return trace::CounterNamed(name).value(); }

/// Trainers and engines as objects of this process, whose tensors lie on two devices of the fake driver.
class WorkerScene : public ::testing::Test {
 protected:
  WorkerScene() {
    auto started = Controller::Start({.listen = "127.0.0.1:0", .settings = Settings()});
    transport::Require(started.ok(), started.status().message());
    controller = std::move(started).value();
  }
  static std::map<std::string, std::string> Settings() { return {{"bind", "127.0.0.1"}}; }
  [[nodiscard]] WorkerOptions Options() const {
    WorkerOptions options;
    options.controller = controller->address();
    options.settings = Settings();
    return options;
  }
  /// Freed after the workers: they are made later.
  Memory Allocate(size_t bytes) {
    memories.push_back(devices.Allocate(bytes, true));
    return memories.back();
  }
  void FreeAll() {
    for (const Memory& memory : memories) devices.Free(memory);
    memories.clear();
  }
  static Shard Whole(const std::string& name, DType dtype, const Shape& shape, const Memory& memory) {
    return {.tensor = {name, dtype, shape}, .part = Box{Shape(shape.size(), 0), shape}, .memory = memory};
  }
  std::unique_ptr<Trainer> ConnectTrainer() const {
    auto trainer = Trainer::Connect(Options());
    transport::Require(trainer.ok(), trainer.status().message());
    return std::move(trainer).value();
  }
  std::unique_ptr<Inference> ConnectInference() const {
    WorkerOptions options = Options();
    options.engine = "rollout";
    auto inference = Inference::Connect(std::move(options));
    transport::Require(inference.ok(), inference.status().message());
    return std::move(inference).value();
  }
  /// One version from the trainer to the engine.
  static void Move(Trainer& trainer, Inference& inference, int64_t number) {
    const auto update = trainer.Publish(number);
    ASSERT_TRUE(update.ok()) << update.status().ToString();
    const auto version = inference.Wait(inference.version(), In(60));
    ASSERT_TRUE(version.ok()) << version.status().ToString();
    ASSERT_EQ(version->number, number);
    ASSERT_TRUE((*update)->WaitSources(In(60)).ok());
    const auto stats = (*update)->Wait(In(60));
    ASSERT_TRUE(stats.ok()) << stats.status().ToString();
  }

  transport::FakeMachine machine;
  transport::DevicesInUse devices{machine};
  std::vector<Memory> memories;
  std::unique_ptr<Controller> controller;
};

}  // namespace weightcast
