#pragma once

#include <chrono>
#include <cstdint>

namespace weightcast {

/// Seconds since 1970, by the clock that hosts set: for what people read and hosts compare, never for
/// deadlines.
inline double UnixNow() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}
inline int64_t UnixMicroseconds() {
  return std::chrono::floor<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace weightcast
