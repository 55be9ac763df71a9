#pragma once

#include "kernels/convert.h"
#include "kernels/lane.h"

/// Copies a box with strides to dense memory, with or without a cast.
namespace weightcast::kernels {

inline constexpr int kBoxDims = 8;

/// Parameters of gather_*. A unit is what one thread moves at a time: an element, or with `group` eight that
/// lie side by side at both ends, at multiples of 16. Units [first, first + count) of the box, in row-major
/// order, go one after another to `target`.
struct GatherParameters {
  uint64_t source;  ///< The box's first element.
  uint64_t target;
  uint64_t first;
  uint64_t count;
  uint32_t dims;             ///< Those that are not 1, at the end of the arrays; the others are 1.
  uint32_t group;            ///< 0 or 1; only casts know groups.
  uint64_t size[kBoxDims];   ///< In units; outermost first.
  int64_t stride[kBoxDims];  ///< Bytes from one unit to the next.
};

/// A place in a box: mixed-radix digits, so that going on costs additions and no division.
template <int kDims>
class Place {
 public:
  static constexpr int kSkip = kBoxDims - kDims;

  WC_INLINE Place(const GatherParameters& box, uint64_t unit) {
    WC_UNROLL for (int d = kDims - 1; d > 0; --d) {
      digit_[d] = unit % box.size[kSkip + d];
      unit /= box.size[kSkip + d];
    }
    digit_[0] = unit;
  }
  WC_INLINE void Add(const GatherParameters& box, const Place& step) {
    uint64_t carry = 0;
    WC_UNROLL for (int d = kDims - 1; d > 0; --d) {
      digit_[d] += step.digit_[d] + carry;
      carry = digit_[d] >= box.size[kSkip + d] ? 1 : 0;
      digit_[d] -= carry != 0 ? box.size[kSkip + d] : 0;
    }
    digit_[0] += step.digit_[0] + carry;
  }
  [[nodiscard]] WC_INLINE uint64_t Address(const GatherParameters& box) const {
    uint64_t address = box.source;
    WC_UNROLL for (int d = 0; d < kDims; ++d) address +=
        digit_[d] * static_cast<uint64_t>(box.stride[kSkip + d]);
    return address;
  }

 private:
  uint64_t digit_[kDims];
};

/// A unit that is copied as it is.
template <typename Word>
struct CopyUnit {
  static constexpr uint64_t kBytes = sizeof(Word);
  static void Move(uint64_t source, uint64_t target) { Store<Word>(target, Load<Word>(source)); }
};
template <typename From, typename To>
struct CastUnit {
  static constexpr uint64_t kBytes = sizeof(typename To::Bits);
  static void Move(uint64_t source, uint64_t target) { CastOne<From, To>(source, target); }
};
template <typename From, typename To>
struct CastGroupUnit {
  static constexpr uint64_t kBytes = 8 * sizeof(typename To::Bits);
  static void Move(uint64_t source, uint64_t target) { CastGroup<From, To>(source, target); }
};

template <typename Unit, int kDims>
WC_INLINE void GatherDims(Lane lane, const GatherParameters& box) {
  uint64_t i = lane.index();
  if (i >= box.count) return;
  Place<kDims> place(box, box.first + i);
  const Place<kDims> step(box, lane.count());
  for (;;) {
    Unit::Move(place.Address(box), box.target + i * Unit::kBytes);
    i += lane.count();
    if (i >= box.count) return;
    place.Add(box, step);
  }
}

/// Most boxes have one or two dimensions once neighbours are merged.
template <typename Unit>
WC_INLINE void GatherUnits(Lane lane, const GatherParameters& box) {
  if (box.dims <= 2) return GatherDims<Unit, 2>(lane, box);
  GatherDims<Unit, kBoxDims>(lane, box);
}

template <typename From, typename To>
WC_INLINE void GatherCast(Lane lane, const GatherParameters& box) {
  if (box.group != 0) return GatherDims<CastGroupUnit<From, To>, kBoxDims>(lane, box);
  GatherUnits<CastUnit<From, To>>(lane, box);
}

}  // namespace weightcast::kernels
