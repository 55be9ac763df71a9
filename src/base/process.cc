#include "base/process.h"

#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/strings.h"

namespace weightcast {

Result<UniqueFd> OpenPidFd(int pid) {
  const auto fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return Status(Code::kUnavailable, StrCat("cannot open process ", pid, ": ", ErrnoText(errno)));
  return UniqueFd(fd);
}

bool HasExited(const UniqueFd& pidfd) {
  pollfd entry{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  return poll(&entry, 1, 0) == 1 && (entry.revents & POLLIN) != 0;
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
