#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "transport/types.h"

namespace weightcast::transport {

/// Events on their way to the caller of Progress, in order. Grows only beyond its start capacity, and
/// those who produce by choice (receiving, refusing) stop when it is full().
class EventQueue {
 public:
  EventQueue() { events_.reserve(2 * kSoftLimit); }

  [[nodiscard]] bool empty() const { return next_ == events_.size(); }
  [[nodiscard]] size_t size() const { return events_.size() - next_; }
  [[nodiscard]] bool full() const { return size() >= kSoftLimit; }
  template <typename T>
  void Push(T event) {
    events_.emplace_back(std::in_place_type<T>, std::move(event));
  }
  /// Moves the oldest into `out` and says how many.
  size_t Take(std::span<Event> out) {
    size_t count = 0;
    while (count < out.size() && next_ < events_.size()) out[count++] = std::move(events_[next_++]);
    if (next_ == events_.size()) {
      events_.clear();
      next_ = 0;
    } else if (next_ >= kSoftLimit) {
      events_.erase(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(next_));
      next_ = 0;
    }
    return count;
  }

 private:
  static constexpr size_t kSoftLimit = 1024;
  std::vector<Event> events_;
  size_t next_ = 0;
};

}  // namespace weightcast::transport
