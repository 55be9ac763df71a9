#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace weightcast::transport::shm {

/// Lengths of a staging ring: powers of two.
inline constexpr uint64_t kShortestStage = uint64_t{1} << 20;
inline constexpr uint64_t kLongestStage = uint64_t{16} << 20;
inline bool IsStageLength(uint64_t bytes) {
  return std::has_single_bit(bytes) && bytes >= kShortestStage && bytes <= kLongestStage;
}

/// What the staging rings of one transport object may still pin, of the setting `pinned`. The holder of
/// progress alone.
class StageBudget {
 public:
  explicit StageBudget(uint64_t limit) : left_(limit) {}

  /// The length of a new ring, at most `most`; 0: nothing is left. A ring takes a quarter of what is left, so
  /// that the first connections do not leave the others without.
  uint64_t Take(uint64_t most) {
    const uint64_t quarter = std::clamp(std::bit_floor(left_ / 4), kShortestStage, kLongestStage);
    const uint64_t length = std::min(quarter, most);
    return TakeAll(length) ? length : 0;
  }
  /// `bytes` or nothing.
  bool TakeAll(uint64_t bytes) {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }
  void Give(uint64_t bytes) { left_ += bytes; }

 private:
  uint64_t left_;
};

}  // namespace weightcast::transport::shm
