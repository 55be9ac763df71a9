#include "base/process.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <vector>

#include "base/advice.h"
#include "base/strings.h"

namespace weightcast {

Result<UniqueFd> OpenPidFd(int pid) {
  const auto fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0)
    return Error(Code::kUnavailable, "cannot watch process ", pid, " (pidfd_open): ", ErrnoAndAdvice(errno));
  return UniqueFd(fd);
}

bool HasExited(const UniqueFd& pidfd) {
  pollfd entry{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  return poll(&entry, 1, 0) == 1 && (entry.revents & POLLIN) != 0;
}

Status CheckDescriptors(size_t wanted) {
  std::vector<UniqueFd> taken;
  taken.reserve(wanted);
  while (taken.size() < wanted) {
    taken.emplace_back(eventfd(0, EFD_CLOEXEC));
    if (taken.back().valid()) continue;
    const int error = errno;
    return Error(Code::kExhausted, "only ", taken.size() - 1,
                 " more files can be opened in this process, and at least ", wanted,
                 " are needed: ", ErrnoText(error), "; raise the limit of open files (ulimit -n), which is ",
                 DescriptorLimit());
  }
  return Status::Ok();
}

size_t DescriptorLimit() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 1024;
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void NameThread(const char* name) { pthread_setname_np(pthread_self(), name); }

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "unknown";
  return name;
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace weightcast
