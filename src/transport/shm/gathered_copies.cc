#include "transport/shm/gathered_copies.h"

#include <algorithm>

namespace weightcast::transport::shm {

bool GatheredCopies::Touches(const std::byte* to, uint64_t length) const {
  return std::ranges::any_of(copies(), [&](const device::Copy& copy) {
    return copy.to < to + length && to < copy.to + copy.length;
  });
}

void GatheredCopies::Add(const device::Copy& copy, bool same_regions) {
  ++pieces_;
  bytes_ += copy.length;
  if (same_regions && count_ > 0) {
    device::Copy& last = copies_[count_ - 1];
    if (last.to + last.length == copy.to && last.from + last.length == copy.from && last.ends == copy.ends) {
      last.length += copy.length;
      return;
    }
  }
  copies_[count_++] = copy;
}

}  // namespace weightcast::transport::shm
