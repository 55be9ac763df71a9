#pragma once

#include <span>
#include <utility>
#include <vector>

#include "transport/types.h"

namespace weightcast::transport::shm {

/// Events on their way to Progress' caller. Grows when it must; the data path stops well before.
class EventQueue {
 public:
  /// From here on, work that makes more events waits.
  static constexpr size_t kPlenty = 2048;

  EventQueue() : ring_(2 * kPlenty) {}

  void Push(Event event) {
    if (count_ == ring_.size()) Grow();
    ring_[(first_ + count_++) & (ring_.size() - 1)] = std::move(event);
  }
  size_t Pop(std::span<Event> out) {
    size_t taken = 0;
    for (; taken < out.size() && count_ > 0; ++taken, --count_) {
      out[taken] = std::move(ring_[first_]);
      first_ = (first_ + 1) & (ring_.size() - 1);
    }
    return taken;
  }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] bool plenty() const { return count_ >= kPlenty; }

 private:
  void Grow() {
    std::vector<Event> larger(2 * ring_.size());
    for (size_t i = 0; i < count_; ++i) larger[i] = std::move(ring_[(first_ + i) & (ring_.size() - 1)]);
    ring_ = std::move(larger);
    first_ = 0;
  }

  std::vector<Event> ring_;  ///< Its size is a power of two.
  size_t first_ = 0;
  size_t count_ = 0;
};

}  // namespace weightcast::transport::shm
