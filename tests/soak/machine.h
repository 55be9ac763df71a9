#pragma once

#include <string>

namespace weightcast::soak {

/// The folder of a machine of tests/fake_cuda, for the processes of one cluster.
class Machine {
 public:
  /// `delay_us`: the longest pause between two pieces of a copy.
  Machine(unsigned seed, unsigned delay_us);
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  ~Machine();  ///< Removes the folder.
  /// "NAME=VALUE" for the environment of a process.
  [[nodiscard]] std::string Environment() const { return "FAKE_CUDA=" + config_; }
  /// Once all processes have ended: whether the one that plays the GPU ends too, and leaves nothing behind.
  [[nodiscard]] bool EndsEmpty() const;

 private:
  std::string folder_ = "/tmp/wc_soak_gpus_XXXXXX";
  std::string config_;
};

}  // namespace weightcast::soak
