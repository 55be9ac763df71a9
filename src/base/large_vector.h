#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

namespace weightcast {

/// Asks for huge pages for what is large: arrays of many megabytes that are looked up all over cost a miss of
/// the TLB for each look otherwise (docs/performance.md). Where there are none, ordinary pages serve.
template <class T>
struct LargeAllocator {
  using value_type = T;

  LargeAllocator() = default;
  template <class U>
  LargeAllocator(const LargeAllocator<U>& /*other*/) {}  // NOLINT(google-explicit-constructor): as std's.

  [[nodiscard]] T* allocate(size_t count) {
    if (count > SIZE_MAX / sizeof(T) / 2) throw std::bad_array_new_length();
    const size_t bytes = count * sizeof(T);
    const size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* memory = bytes < 2 * kHugePage ? std::malloc(bytes) : std::aligned_alloc(kHugePage, rounded);
    if (memory == nullptr) throw std::bad_alloc();
    if (bytes >= 2 * kHugePage) madvise(memory, rounded, MADV_HUGEPAGE);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t /*count*/) noexcept { std::free(memory); }
  friend bool operator==(const LargeAllocator&, const LargeAllocator&) { return true; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
};

/// For arrays that may grow to many megabytes and are read in any order.
template <class T>
using LargeVector = std::vector<T, LargeAllocator<T>>;

}  // namespace weightcast
