#pragma once

#include <cstdint>

namespace weightcast::control {

enum class PlanPhase : uint8_t {
  kNone,       ///< None yet, or void.
  kPlanning,   ///< The shell is making it.
  kPreparing,  ///< Handed out; members connect.
  kPrepared,   ///< Updates may run.
};

}  // namespace weightcast::control
