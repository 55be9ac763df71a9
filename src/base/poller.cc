#include "base/poller.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "base/advice.h"
#include "base/strings.h"

namespace weightcast {

Result<WakeFd> WakeFd::Create() {
  WakeFd wake;
  wake.fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.fd_.valid()) return Error(Code::kExhausted, "cannot make an eventfd: ", ErrnoAndAdvice(errno));
  return wake;
}

void WakeFd::Wake() const {
  const uint64_t one = 1;
  // EAGAIN means that wake-ups are pending already.
  [[maybe_unused]] const ssize_t ignored = write(fd_.get(), &one, sizeof one);
}

void WakeFd::Drain() const {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t ignored = read(fd_.get(), &count, sizeof count);
}

Result<Poller> Poller::Create() {
  Poller poller;
  poller.fd_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!poller.fd_.valid())
    return Error(Code::kExhausted, "cannot make an epoll descriptor: ", ErrnoAndAdvice(errno));
  return poller;
}

Status Poller::Add(int fd, uint32_t events, uint64_t key) const {
  epoll_event event{.events = events, .data = {.u64 = key}};
  if (epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return Status::Ok();
  return Error(Code::kExhausted,
               "the kernel cannot watch one more descriptor for this process: ", ErrnoText(errno),
               "; raise fs.epoll.max_user_watches with sysctl, or give this host more memory");
}

Status Poller::Modify(int fd, uint32_t events, uint64_t key) const {
  epoll_event event{.events = events, .data = {.u64 = key}};
  if (epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event) == 0) return Status::Ok();
  return Error(Code::kInternal, "cannot change how a descriptor is watched: ", ErrnoText(errno),
               "; please report this as a bug");
}

void Poller::Remove(int fd) const { epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr); }

int Poller::Wait(std::span<epoll_event> out, std::optional<Duration> timeout) const {
  // Milliseconds, rounded up: waking early would make the caller spin until its deadline.
  const int milliseconds =
      timeout ? static_cast<int>(std::clamp<int64_t>(
                    std::chrono::ceil<std::chrono::milliseconds>(*timeout).count(), 0, 1'000'000))
              : -1;
  const int count = epoll_wait(fd_.get(), out.data(), static_cast<int>(out.size()), milliseconds);
  return std::max(count, 0);
}

}  // namespace weightcast
