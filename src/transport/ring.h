#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weightcast::transport {

/// A queue of fixed capacity whose elements stay where they are: no allocation after the start.
/// Elements are named by a number that grows with each push, modulo 2^32.
template <typename T>
class Ring {
 public:
  /// Of no capacity, until another one is assigned.
  Ring() = default;
  explicit Ring(size_t capacity)
      : slots_(RoundUp(capacity)), mask_(static_cast<uint32_t>(slots_.size() - 1)) {}

  [[nodiscard]] bool empty() const { return head_ == tail_; }
  [[nodiscard]] bool full() const { return size() == slots_.size(); }
  [[nodiscard]] uint32_t size() const { return tail_ - head_; }
  /// The number of the oldest element, and the one after the newest.
  [[nodiscard]] uint32_t head() const { return head_; }
  [[nodiscard]] uint32_t tail() const { return tail_; }
  [[nodiscard]] T& operator[](uint32_t number) { return slots_[number & mask_]; }
  [[nodiscard]] const T& operator[](uint32_t number) const { return slots_[number & mask_]; }
  [[nodiscard]] T& front() { return (*this)[head_]; }
  /// The new newest element, with what an earlier one left in it.
  T& Push() { return slots_[tail_++ & mask_]; }
  void Pop() { ++head_; }

 private:
  static size_t RoundUp(size_t capacity) {
    size_t size = 1;
    while (size < capacity)
      size *= 2;  // Numbers wrap at 2^32, so a slot must follow from a number's low bits.
    return size;
  }
  std::vector<T> slots_;
  uint32_t mask_ = 0;
  uint32_t head_ = 0;
  uint32_t tail_ = 0;
};

}  // namespace weightcast::transport
