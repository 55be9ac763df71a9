#pragma once

#include <map>
#include <string>

#include "soak/board.h"
#include "weightcast/registration.h"

namespace weightcast::soak {

/// What the ranks have of the weights.
enum class Holding {
  kReplicated,  ///< Each trainer everything.
  kSharded,     ///< Each trainer a half.
  kModels,      ///< Rank 0 of each kind the draft and rank 1 the policy of a commit group; engine b has both.
};

/// How a cluster is set up; handed to each process on its command line.
struct Setup {
  std::string controller;  ///< "host:port", always the same.
  std::map<std::string, std::string> settings;
  LandingMode landing = LandingMode::kInPlace;
  Holding holding = Holding::kReplicated;
};

inline constexpr std::array<std::string_view, 3> kLandingNames = {"in_place", "shadow", "loader"};
inline constexpr std::array<std::string_view, 3> kHoldingNames = {"replicated", "sharded", "models"};

/// Runs as process `index` until board.stop; what it returns is its exit code. A controller that ends and a
/// worker that finds no way on returns 3: whoever started it starts it again.
int RunRole(Board& board, size_t index, const Setup& setup);

}  // namespace weightcast::soak
