#include "base/listener.h"

#include <fcntl.h>
#include <pthread.h>

#include <mutex>
#include <vector>

namespace weightcast {
namespace {

struct Open {
  std::mutex mutex;
  std::vector<int> listeners;
};
/// Never destroyed: a fork may come at any time.
Open& AllOpen() {
  static auto* const open = new Open;
  return *open;
}

/// Other objects of the child still own the number and close it some day, so something else takes its place.
/// Only calls that are allowed between fork and exec; the child has one thread.
void LetGo(int listener) {
  ::close(listener);
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing < 0 || nothing == listener) return;
  ::dup3(nothing, listener, O_CLOEXEC);
  ::close(nothing);
}

void WatchForks() {
  static const int registered =
      pthread_atfork([] { AllOpen().mutex.lock(); }, [] { AllOpen().mutex.unlock(); },
                     [] {
                       for (const int listener : AllOpen().listeners) LetGo(listener);
                       AllOpen().listeners.clear();
                       AllOpen().mutex.unlock();
                     });
  (void)registered;
}

}  // namespace

Listener::Listener(UniqueFd fd) : fd_(std::move(fd)) {
  if (!fd_.valid()) return;
  WatchForks();
  const std::lock_guard lock(AllOpen().mutex);
  AllOpen().listeners.push_back(fd_.get());
}

Listener& Listener::operator=(Listener&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::move(other.fd_);
  }
  return *this;
}

void Listener::reset() {
  if (!fd_.valid()) return;
  const std::lock_guard lock(AllOpen().mutex);
  std::erase(AllOpen().listeners, fd_.get());
  fd_.reset();
}

}  // namespace weightcast
