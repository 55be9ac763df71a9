#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/model/config.h"
#include "tests/model/model.h"

namespace weightcast::model {

/// Of one depth: how many states, and the sum of their fingerprints, which does not depend on their order.
/// Two programs that give the same for each level have seen the same states.
struct LevelSum {
  uint64_t states = 0;
  uint64_t fingerprints = 0;
};

struct Outcome {
  uint64_t states = 0;
  uint64_t moves = 0;
  uint64_t walked = 0;           ///< Moves of random walks.
  uint64_t lived = 0;            ///< States from which the fair schedule was run.
  uint32_t depth = 0;            ///< All states up to here have been seen.
  bool complete = false;         ///< There are no others.
  std::vector<LevelSum> levels;  ///< Those that were searched to their end.
  double seconds = 0;
  std::optional<Violation> violation;
  std::string trace;  ///< The shortest, in the search's measure of depth.
};

/// Breadth-first until the limits of `config`, then random walks. `say`: progress to standard error.
Outcome Explore(const Config& config, bool say);

}  // namespace weightcast::model
