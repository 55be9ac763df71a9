#pragma once

#include <chrono>
#include <future>

#include "weightcast/worker.h"

namespace weightcast::test {

/// Waits for a newer version on a thread of its own: a Wait into which bytes may land does not end before its
/// update has.
inline std::future<Result<Version>> WaitInThread(Inference& engine) {
  return std::async(std::launch::async, [&engine] { return engine.Wait(engine.version(), In(60)); });
}

/// After long enough for what must not happen.
inline bool StillWaits(const std::future<Result<Version>>& waiting) {
  return waiting.wait_for(std::chrono::milliseconds(300)) == std::future_status::timeout;
}

}  // namespace weightcast::test
