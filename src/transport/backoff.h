#pragma once

#include <algorithm>
#include <cstdint>

#include "base/random.h"
#include "weightcast/clock.h"

namespace weightcast::transport {

/// How long to wait before the next try to open a lane again: 0.1 s, doubled with each that came to nothing,
/// at most 5 s. Half of it by chance: a cable that was pulled takes many links' lanes at once.
inline Duration WaitAfter(uint32_t failures) {
  constexpr Duration kShortest = std::chrono::milliseconds(100);
  constexpr Duration kLongest = std::chrono::seconds(5);
  const Duration whole = std::min(kShortest * (1U << std::min(failures, 10U)), kLongest);
  return whole / 2 +
         Duration(static_cast<Duration::rep>(RandomId() % static_cast<uint64_t>(whole.count() / 2)));
}

/// A lane that lived so long was a good one: the next waits as if it were the first.
inline constexpr Duration kGoodGeneration = std::chrono::seconds(10);

}  // namespace weightcast::transport
