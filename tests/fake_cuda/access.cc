#include "fake_cuda/access.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/uio.h>

#include <cerrno>

#include "fake_cuda/config.h"

namespace weightcast::fake_cuda {
namespace {

sigjmp_buf* volatile guard = nullptr;

void OnFault(int signal) {
  if (guard != nullptr) siglongjmp(*guard, 1);
  struct sigaction plain{};
  plain.sa_handler = SIG_DFL;
  sigaction(signal, &plain, nullptr);
}

Access ResultOf(ssize_t moved, size_t length) {
  if (moved == static_cast<ssize_t>(length)) return Access::kDone;
  if (moved < 0 && errno == EPERM) {
    Wrong("fake_gpu", "process_vm_readv is not allowed here: run as the same user, with ptrace permitted");
  }
  return moved < 0 && errno == ESRCH ? Access::kDead : Access::kNoMemory;
}

}  // namespace

void GuardAccesses() {
  struct sigaction action{};
  action.sa_handler = OnFault;
  action.sa_flags = SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

bool Guarded(const std::function<void()>& access) {
  sigjmp_buf here;
  if (sigsetjmp(here, 0) != 0) {
    guard = nullptr;
    return false;
  }
  guard = &here;
  access();
  guard = nullptr;
  return true;
}

Access ReadProcess(int pid, uint64_t from, std::byte* to, size_t length) {
  const iovec local{to, length};
  const iovec remote{reinterpret_cast<void*>(from), length};
  return ResultOf(process_vm_readv(pid, &local, 1, &remote, 1, 0), length);
}

Access WriteProcess(int pid, uint64_t to, const std::byte* from, size_t length) {
  const iovec local{const_cast<std::byte*>(from), length};
  const iovec remote{reinterpret_cast<void*>(to), length};
  return ResultOf(process_vm_writev(pid, &local, 1, &remote, 1, 0), length);
}

}  // namespace weightcast::fake_cuda
