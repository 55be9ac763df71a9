#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "weightcast/status.h"

namespace weightcast::bindings {

/// How the progress thread tells an event loop what it has waited for: numbers in a queue, and a descriptor
/// that is readable while there are some. Push neither waits nor needs the GIL. Any thread.
class Completions {
 public:
  static Result<std::shared_ptr<Completions>> Create() {
    const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0)
      return Status(Code::kExhausted, std::string("cannot make an eventfd: ") + std::strerror(errno) +
                                          "; raise the limit of open files (ulimit -n)");
    return std::shared_ptr<Completions>(new Completions(fd));
  }
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;
  ~Completions() { ::close(fd_); }

  void Push(uint64_t number) {
    const std::lock_guard lock(mutex_);
    numbers_.push_back(number);
    if (numbers_.size() == 1) ::eventfd_write(fd_, 1);
  }
  /// All since the last call, oldest first.
  std::vector<uint64_t> Take() {
    const std::lock_guard lock(mutex_);
    eventfd_t ignored = 0;
    ::eventfd_read(fd_, &ignored);
    return std::exchange(numbers_, {});
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  explicit Completions(int fd) : fd_(fd) {}

  const int fd_;
  std::mutex mutex_;
  std::vector<uint64_t> numbers_;
};

/// One number in one queue.
struct Bell {
  std::shared_ptr<Completions> queue;
  uint64_t number = 0;
  void Ring() const { queue->Push(number); }
  friend bool operator==(const Bell&, const Bell&) = default;
};

}  // namespace weightcast::bindings
