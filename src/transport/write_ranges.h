#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace weightcast::transport {

/// Which bytes of this process's regions a grant opens. Immutable.
class WriteRanges {
 public:
  /// `count` blocks of `length` bytes, each `stride` bytes after the one before, in one region.
  struct Range {
    uint32_t region = 0;
    uint32_t generation = 0;
    uint64_t offset = 0;  ///< Of the first block, from the first byte of the registration.
    uint64_t length = 0;
    uint64_t stride = 0;  ///< At least `length` where there are several.
    uint64_t count = 1;
    [[nodiscard]] uint64_t end() const { return offset + stride * (count - 1) + length; }
  };

  explicit WriteRanges(std::vector<Range> all) : all_(std::move(all)) {
    std::erase_if(all_, [](const Range& range) { return range.count == 0 || range.length == 0; });
    for (Range& range : all_) {
      if (range.count > 1 && range.stride != range.length) continue;
      range = {range.region, range.generation, range.offset, range.length * range.count, 0, 1};
    }
    std::ranges::sort(all_, {}, Place);
    uint64_t reach = 0;
    for (size_t i = 0; i < all_.size(); ++i) {
      if (i == 0 || !SameRegion(all_[i - 1], all_[i].region, all_[i].generation)) reach = 0;
      reach_.push_back(reach = std::max(reach, all_[i].end()));
    }
  }

  /// Whether each of these bytes lies in a block. They may lie in several that touch.
  [[nodiscard]] bool Cover(uint32_t region, uint32_t generation, uint64_t offset, uint64_t length) const {
    const uint64_t end = offset + length;
    while (offset < end) {
      const uint64_t next = EndOfBlockAt(region, generation, offset);
      if (next == offset) return false;
      offset = next;
    }
    return true;
  }

 private:
  static std::tuple<uint32_t, uint32_t, uint64_t> Place(const Range& range) {
    return {range.region, range.generation, range.offset};
  }
  static bool SameRegion(const Range& range, uint32_t region, uint32_t generation) {
    return range.region == region && range.generation == generation;
  }
  /// The end of a block that holds this byte; `at` if none does.
  [[nodiscard]] uint64_t EndOfBlockAt(uint32_t region, uint32_t generation, uint64_t at) const {
    auto i = static_cast<size_t>(
        std::ranges::upper_bound(all_, std::tuple(region, generation, at), {}, Place) - all_.begin());
    while (i-- > 0 && SameRegion(all_[i], region, generation) && reach_[i] > at) {
      const Range& range = all_[i];
      const uint64_t number =
          range.count == 1 ? 0 : std::min((at - range.offset) / range.stride, range.count - 1);
      const uint64_t end = range.offset + number * range.stride + range.length;
      if (at < end) return end;
    }
    return at;
  }

  std::vector<Range> all_;       ///< By place.
  std::vector<uint64_t> reach_;  ///< As all_: where the last of these and of those before in its region ends.
};

/// What a grant opens; null: every region that takes writes under grants.
using GrantReach = std::shared_ptr<const WriteRanges>;

}  // namespace weightcast::transport
