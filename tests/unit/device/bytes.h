#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "device/copy_queue.h"

namespace weightcast::device {

/// Host memory stands for both ends: the queue does not look at addresses.
struct Bytes {
  explicit Bytes(size_t length) : from(length), to(length) {
    for (size_t i = 0; i < length; ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  }
  [[nodiscard]] Copy At(size_t offset, size_t length) {
    return {.to = to.data() + offset, .from = from.data() + offset, .length = length};
  }
  [[nodiscard]] bool Arrived(size_t offset, size_t length) const {
    return std::equal(to.begin() + offset, to.begin() + offset + length, from.begin() + offset);
  }
  std::vector<std::byte> from;
  std::vector<std::byte> to;
};

}  // namespace weightcast::device
