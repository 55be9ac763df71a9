#include "base/advice.h"

#include <cerrno>

namespace weightcast {
namespace {

std::string_view AdviceFor(int error) {
  switch (error) {
    case EMFILE:
      return "; raise the limit of open files (ulimit -n)";
    case ENFILE:
      return "; raise this host's limit of open files (sysctl fs.file-max)";
    case ENOMEM:
    case ENOBUFS:
      return "; give this process more memory (ulimit -v, its control group, the host)";
    case EAGAIN:
      return "; raise the limit of processes (ulimit -u, or the container's)";
    case EACCES:
    case EPERM:
      return "; allow this user to do that (capabilities, seccomp profile, container)";
    case ESRCH:
      return "; that process has ended: see its log";
    case ENOSYS:
    case EOPNOTSUPP:
      return "; use a newer kernel, or allow this system call in the container's seccomp profile";
    default:
      return "; see the kernel's log (dmesg)";
  }
}

}  // namespace

std::string ErrnoAndAdvice(int error) { return StrCat(ErrnoText(error), AdviceFor(error)); }

}  // namespace weightcast
