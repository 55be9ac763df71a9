#pragma once

#include <atomic>
#include <cstdint>

#include "weightcast/region.h"

namespace weightcast {

/// What stands in a slice, for the endpoint alone.
class SliceAccess {
 public:
  /// New in this process, never 0: a slice of a registration or import that is gone never names the next one
  /// at the same index.
  static uint64_t NewSerial() {
    static std::atomic<uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  template <SliceSide side>
  static BasicSlice<side> Make(uint64_t serial, uint32_t index, uint64_t offset, uint64_t length) {
    return {serial, index, offset, length};
  }
  template <SliceSide side>
  static uint64_t SerialOf(const BasicSlice<side>& slice) {
    return slice.serial_;
  }
  template <SliceSide side>
  static uint32_t IndexOf(const BasicSlice<side>& slice) {
    return slice.index_;
  }
  template <SliceSide side>
  static uint64_t OffsetOf(const BasicSlice<side>& slice) {
    return slice.offset_;
  }
};

}  // namespace weightcast
