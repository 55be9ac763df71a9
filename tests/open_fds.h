#pragma once

#include <filesystem>
#include <iterator>

namespace weightcast::test {

/// How many file descriptors this process has open, one for the count included.
inline size_t OpenFds() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

}  // namespace weightcast::test
