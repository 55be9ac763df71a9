#pragma once

#include <algorithm>
#include <chrono>

#include "weightcast/clock.h"

namespace weightcast::control {

/// gRPC's own keepalive, derived from the lease: it only has to notice dead links while heartbeats do the
/// rest, and must never be the stricter of the two.
inline int KeepaliveMilliseconds(Duration lease) {
  const auto half = std::chrono::duration_cast<std::chrono::milliseconds>(lease / 2).count();
  return static_cast<int>(std::clamp<int64_t>(half, 100, 60'000));
}
inline int KeepaliveTimeoutMilliseconds(Duration lease) { return 2 * KeepaliveMilliseconds(lease); }

/// Sends gRPC's own log to ours: its errors as warnings, the rest at debug level. Once per process.
void TakeGrpcLog();

}  // namespace weightcast::control
