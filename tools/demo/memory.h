#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "plan/layout.h"
#include "tools/demo/options.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// What the processes of a demo will take, in bytes.
struct DemoMemory {
  int64_t trainers = 0;   ///< All of them together.
  int64_t inference = 0;  ///< Live weights.
  int64_t shadow = 0;     ///< Second copies.
  int64_t processes = 0;  ///< Code, stacks, buffers of all processes.
  int64_t file = 0;       ///< The generated model file, where the temporary folder lies in memory.
  [[nodiscard]] int64_t total() const { return trainers + inference + shadow + processes + file; }
};

/// `temporary`: where the model file will be written (if one is).
Result<DemoMemory> MemoryOf(const DemoOptions& options, const std::vector<TensorInfo>& tensors,
                            const std::filesystem::path& temporary);

/// "memory: 2 trainers 0.5 GB + ... = 1.1 GB, of 23.4 GB available".
std::string Describe(const DemoMemory& memory, uint64_t available);

/// kExhausted, with the numbers and what to lower, for a demo that does not fit.
Status CheckFits(const DemoMemory& memory, uint64_t available, const DemoOptions& options);

}  // namespace weightcast::tools
