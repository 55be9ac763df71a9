#pragma once

#include <cstdint>
#include <functional>

namespace weightcast::peertest {

/// The largest size in [low, high] that passes, where all that are smaller than one that passes do too; 0:
/// not even `low`. Exact to `step`. Asks for `high` first: most paths take everything.
int64_t LargestThatPasses(int64_t low, int64_t high, int64_t step,
                          const std::function<bool(int64_t size)>& passes);

}  // namespace weightcast::peertest
