#pragma once

#include <algorithm>
#include <cstddef>

#include "unit/device/fake/fake_world.h"

namespace weightcast::device {

/// Pinned memory at both ends: the queue does not look at addresses, and a test can look at the bytes.
class Bytes {
 public:
  Bytes(Host& host, size_t length)
      : host_(host), length_(length), from_(host.Pinned(length)), to_(host.Pinned(length)) {
    for (size_t i = 0; i < length; ++i) from_[i] = static_cast<std::byte>(i * 7 + 1);
    Wipe(0, length);
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() {
    for (std::byte* const each : {from_, to_}) {
      const auto freed = host_.cuda->MemFreeHost(each);
      EXPECT_TRUE(host_.leaves_things || freed == drivers::CUDA_SUCCESS);
    }
  }

  [[nodiscard]] Copy At(size_t offset, size_t length) const {
    return {.to = to_ + offset, .from = from_ + offset, .length = length};
  }
  [[nodiscard]] bool Arrived(size_t offset, size_t length) const {
    return std::equal(to_ + offset, to_ + offset + length, from_ + offset);
  }
  void Wipe(size_t offset, size_t length) { std::fill_n(to_ + offset, length, std::byte{0}); }
  [[nodiscard]] size_t length() const { return length_; }

 private:
  Host& host_;
  const size_t length_;
  std::byte* const from_;
  std::byte* const to_;
};

}  // namespace weightcast::device
