#include "verbs_cluster/heap.h"

#include <malloc.h>

#include <cstdlib>
#include <new>

std::atomic<int64_t> CountedHeap::bytes = 0;
std::atomic<bool> CountedHeap::all = false;
thread_local bool CountedHeap::here = false;
thread_local bool CountedHeap::provider = false;

namespace {
void Count(void* block, int sign) {
  if (block == nullptr || CountedHeap::provider || !(CountedHeap::here || CountedHeap::all)) return;
  CountedHeap::bytes += sign * static_cast<int64_t>(malloc_usable_size(block));
}
}  // namespace

void* operator new(size_t size) {
  void* const block = std::malloc(size);
  if (block == nullptr) throw std::bad_alloc();
  Count(block, 1);
  return block;
}
void operator delete(void* block) noexcept {
  Count(block, -1);
  std::free(block);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }
