#include "peertest/path_mtu.h"

namespace weightcast::peertest {

int64_t LargestThatPasses(int64_t low, int64_t high, int64_t step,
                          const std::function<bool(int64_t size)>& passes) {
  if (high < low) return 0;
  if (passes(high)) return high;
  if (high == low || !passes(low)) return 0;
  while (high - low > step) {
    const int64_t middle = low + (high - low) / 2;
    (passes(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace weightcast::peertest
