#include "system/counted.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cstdlib>
#include <new>

thread_local Counted counted;

namespace {

void* CountedAllocation(size_t size) {
  if (counted.on) ++counted.allocations;
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

int CountedLock(const char* name, void* lock) {
  counted.last_lock = lock;
  if (counted.on && lock != counted.uncounted_lock) ++counted.locks;
  using Lock = int (*)(void*);
  return reinterpret_cast<Lock>(dlsym(RTLD_NEXT, name))(lock);
}

}  // namespace

void* operator new(size_t size) { return CountedAllocation(size); }
void* operator new[](size_t size) { return CountedAllocation(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

extern "C" {
int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept { return CountedLock("pthread_mutex_lock", mutex); }
int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  return CountedLock("pthread_rwlock_rdlock", lock);
}
int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  return CountedLock("pthread_rwlock_wrlock", lock);
}
}
