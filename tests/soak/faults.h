#pragma once

#include <array>
#include <random>
#include <string>

#include "soak/board.h"
#include "soak/cluster.h"

namespace weightcast::soak {

/// How often each role was hit in each stage. Rows: controller, trainer, inference.
using Hits = std::array<std::array<int, static_cast<size_t>(Stage::kCount)>, 3>;
size_t RowOf(size_t process);
/// The stages in which a process of that row can be found.
bool CanBeHit(size_t row, Stage stage);
std::string ToString(const Hits& hits);

enum class Kind { kKill, kStop, kUnplug, kDropPackets, kLoseContext, kBlockCall, kCount };
inline constexpr std::array<std::string_view, static_cast<size_t>(Kind::kCount)> kKindNames = {
    "killed",
    "stopped and continued",
    "unplugged",
    "cut off by lost packets",
    "deprived of its context",
    "held up in a driver call"};

/// What came of one fault.
struct Outcome {
  size_t victim = 0;
  Stage stage{};
  Kind kind{};
  double seconds = 0;     ///< From the fault's end until everybody served something newer.
  bool named = true;      ///< Errors that it caused named the victim.
  bool repaired = false;  ///< A replica finished what a trainer that was killed had begun.
  std::string errors;     ///< All that came meanwhile, a line each.
  std::string violation;  ///< Of a promise; empty: none.
};

/// Waits until a process of `row` is in `stage` (or a while), does something to it, and sees that the cluster
/// recovers. `lease`: seconds.
Outcome Torment(Cluster& cluster, size_t row, Stage stage, double lease, std::mt19937& random);

}  // namespace weightcast::soak
