#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/strings.h"
#include "weightcast/worker.h"
#include "weights.h"

/// Trainers and engines as threads of this process.
namespace weightcast::test {

/// A job with its controller.
class Job {
 protected:
  void StartController() {
    auto controller = Controller::Start({.listen = "127.0.0.1:0", .settings = settings_});
    ASSERT_TRUE(controller.ok()) << controller.status().ToString();
    controller_ = std::move(*controller);
  }
  WorkerOptions Options(uint32_t rank, uint32_t ranks, std::string engine = "") const {
    WorkerOptions options;
    options.controller = controller_->address();
    options.rank = rank;
    options.world_size = ranks;
    options.engine = std::move(engine);
    options.settings = settings_;
    return options;
  }
  std::unique_ptr<Trainer> ConnectTrainer(uint32_t rank = 0, uint32_t ranks = 1) const {
    auto trainer = Trainer::Connect(Options(rank, ranks));
    EXPECT_TRUE(trainer.ok()) << trainer.status().ToString();
    return trainer.ok() ? std::move(*trainer) : nullptr;
  }
  std::unique_ptr<Inference> ConnectEngine(std::string engine, uint32_t rank = 0, uint32_t ranks = 1) const {
    auto inference = Inference::Connect(Options(rank, ranks, std::move(engine)));
    EXPECT_TRUE(inference.ok()) << inference.status().ToString();
    return inference.ok() ? std::move(*inference) : nullptr;
  }

  std::map<std::string, std::string> settings_ = {
      {"job", NewName()}, {"lease", "5"}, {"bind", "127.0.0.1"}, {"join_timeout", "20"}};
  std::unique_ptr<Controller> controller_;

 private:
  static std::string NewName() {
    static std::atomic<int> counter{0};
    return StrCat("test-job-", ::getpid(), "-", ++counter);
  }
};

}  // namespace weightcast::test
