#pragma once

#include <cstdint>
#include <string_view>

namespace weightcast {

/// Of an engine, and of each of its ranks. docs/states.md has the transitions.
enum class EngineState : uint8_t {
  kJoining,    ///< Serves nothing yet: it waits for its first version.
  kServing,    ///< Its live tensors are wholly of one version.
  kUpdating,   ///< Has granted an update.
  kReady,      ///< Every byte of the update is there.
  kCommitted,  ///< Has switched, and waits until all ranks of the engine have.
  kSuspended,  ///< Suspended: none of its memory is registered.
  kFailed,     ///< Serves nothing until a later update: its live tensors are of no version.
};

/// "JOINING", "SERVING", ...
std::string_view NameOf(EngineState state);

}  // namespace weightcast
