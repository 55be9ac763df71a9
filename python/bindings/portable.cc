// gcc 12 gave condition_variable::wait a new symbol version, GLIBCXX_3.4.30. With this definition of our own
// the extension loads wherever libstdc++ has 3.4.29 (gcc 11), as manylinux_2_34 promises.
#include <pthread.h>

#include <condition_variable>
#include <mutex>

// NOLINTNEXTLINE(bugprone-std-namespace-modification,cert-dcl58-cpp): it takes the place of the library's.
void std::condition_variable::wait(std::unique_lock<std::mutex>& lock) {
  pthread_cond_wait(native_handle(), lock.mutex()->native_handle());
}
