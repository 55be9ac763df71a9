#pragma once

#include <cstdint>
#include <string>

#include "tools/command.h"
#include "tools/common/model.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// Workers that register a model's shards at a controller without holding a byte of it.
struct RegisterCase {
  Cluster cluster{.trainers = 128, .inference = 128};
  std::string model = "gpt2";
  std::string dtype = "bf16";
  int64_t processes = 8;  ///< Among which the workers are divided.
  [[nodiscard]] int64_t workers() const { return cluster.trainers + cluster.inference; }
};

/// One round.
struct RegisterTimes {
  double seconds = 0;        ///< From before the first Hello until every worker has read its table.
  uint32_t plans = 0;        ///< That the controller made meanwhile.
  uint64_t routes = 0;       ///< Of the last.
  uint64_t table_bytes = 0;  ///< Of the last, over all workers.
};

/// A fresh controller and fresh workers, each with a session of its own: Hello, Register, landing places,
/// plans. Call it while single-threaded: it forks.
Result<RegisterTimes> MeasureRegister(const RegisterCase& what, const Context& context);

}  // namespace weightcast::tools
