#pragma once

#include <array>
#include <cstdint>

#include "plan/box.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast::plan {

/// Elements that lie one after another in the buffers of both shards.
struct Segment {
  int64_t src_offset = 0;  ///< Bytes from the beginning of the source shard's buffer.
  int64_t dst_offset = 0;  ///< Bytes from the beginning of the destination shard's buffer.
  int64_t src_bytes = 0;
  int64_t dst_bytes = 0;  ///< Differs from src_bytes only under a cast.
  friend bool operator==(const Segment&, const Segment&) = default;
};

/// The segments of one route, computed when asked for; the object is of a fixed, small size. Both
/// shards are dense and row-major. Segments come in row-major order of the route's box, as long as they can
/// be.
class Segments {
 public:
  Segments() = default;

  /// `src_box` in coordinates of the source tensor, `dst_offset` in those of the destination tensor.
  /// Errors: kOutOfBounds where the route leaves a shard; kInvalidArgument where a dtype below one
  /// byte is cut inside a byte.
  static Result<Segments> Of(const Box& src_shard, DType src_dtype, const Box& dst_shard, DType dst_dtype,
                             const Box& src_box, const Shape& dst_offset);

  /// Number of segments; 0 for an empty box.
  [[nodiscard]] int64_t count() const { return count_; }
  /// Bytes of all segments together.
  [[nodiscard]] int64_t src_bytes() const { return count_ * src_segment_; }
  [[nodiscard]] int64_t dst_bytes() const { return count_ * dst_segment_; }
  /// Segment `number`, 0..count()-1. Costs a division per dimension.
  [[nodiscard]] Segment At(int64_t number) const;

  /// Calls fn(const Segment&) for segments [first, last), with no division.
  template <typename Fn>
  void ForEach(int64_t first, int64_t last, Fn&& fn) const;
  template <typename Fn>
  void ForEach(Fn&& fn) const {
    ForEach(0, count_, static_cast<Fn&&>(fn));
  }

 private:
  struct Loop {
    int64_t count = 1;
    int64_t src_stride = 0;  ///< Bytes.
    int64_t dst_stride = 0;
  };

  int64_t count_ = 0;
  int64_t src_segment_ = 0;  ///< Bytes of one segment.
  int64_t dst_segment_ = 0;
  int64_t src_base_ = 0;
  int64_t dst_base_ = 0;
  int loops_ = 0;
  std::array<Loop, kMaxDims> loop_{};  ///< Outermost first.
};

template <typename Fn>
void Segments::ForEach(int64_t first, int64_t last, Fn&& fn) const {
  if (first >= last) return;
  std::array<int64_t, kMaxDims> index{};
  int64_t rest = first;
  for (int d = loops_ - 1; d >= 0; --d) {
    index[d] = rest % loop_[d].count;
    rest /= loop_[d].count;
  }
  Segment segment = At(first);
  for (int64_t number = first;;) {
    fn(static_cast<const Segment&>(segment));
    if (++number == last) return;
    for (int d = loops_ - 1; d >= 0; --d) {
      segment.src_offset += loop_[d].src_stride;
      segment.dst_offset += loop_[d].dst_stride;
      if (++index[d] < loop_[d].count) break;
      segment.src_offset -= loop_[d].count * loop_[d].src_stride;
      segment.dst_offset -= loop_[d].count * loop_[d].dst_stride;
      index[d] = 0;
    }
  }
}

}  // namespace weightcast::plan
