#pragma once

#include <cstdint>
#include <string>

#include "protocol/messages.h"
#include "weightcast/clock.h"

namespace weightcast::control {

/// Fixed for a term.
struct MachineConfig {
  protocol::Term term;
  std::string job = "default";
  bool together = true;  ///< Policy `all`: engines switch together; false: each when it is ready.
  uint32_t min_engines = 1;
  Duration lease = FromSeconds(5);
  Duration timeout = FromSeconds(60);
  Duration grant_timeout = FromSeconds(600);
  Duration commit_timeout = FromSeconds(30);
  Duration join_timeout = FromSeconds(300);
};

}  // namespace weightcast::control
