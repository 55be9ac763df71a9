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

/// Where the weights are.
enum class Where {
  kHost,
  kDevice,  ///< Of the fake driver's machine, which has two.
  kMixed,   ///< Trainer 0 and rank 1 of engine a have them in host memory.
};

/// How a cluster is set up; handed to each process on its command line.
struct Setup {
  std::string controller;  ///< "host:port", always the same.
  std::map<std::string, std::string> settings;
  LandingMode landing = LandingMode::kInPlace;
  Holding holding = Holding::kReplicated;
  Where where = Where::kHost;
  unsigned seed = 1;      ///< Of the fake device's order of copies ...
  unsigned delay_us = 0;  ///< ... and its longest pause between two pieces of one.
};
/// Whether process `index` has its weights on a device.
bool UsesDevice(const Setup& setup, size_t index);

inline constexpr std::array<std::string_view, 3> kLandingNames = {"in_place", "shadow", "loader"};
inline constexpr std::array<std::string_view, 3> kWhereNames = {"host", "device", "mixed"};
inline constexpr std::array<std::string_view, 3> kHoldingNames = {"replicated", "sharded", "models"};

/// Runs as process `index` until board.stop; what it returns is its exit code. A controller that ends and a
/// worker that finds no way on returns 3: whoever started it starts it again.
int RunRole(Board& board, size_t index, const Setup& setup);

}  // namespace weightcast::soak
