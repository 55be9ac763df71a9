#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weightcast {

/// Random, new at every start of a process (more exactly: of an endpoint). Never 0.
using Incarnation = uint64_t;

/// Who a process is, as authenticated in the handshake.
struct Identity {
  std::string job;
  std::string role;    ///< "trainer", "inference", or free text for general point-to-point use.
  std::string engine;  ///< Inference: the engine's name; else empty.
  uint32_t rank = 0;   ///< Among the trainers, or within the engine.
  Incarnation incarnation = 0;
  friend bool operator==(const Identity&, const Identity&) = default;
};

/// "trainer 3", "engine rollout-1 rank 0".
std::string ToString(const Identity& identity);

}  // namespace weightcast
