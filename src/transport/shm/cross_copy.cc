#include "transport/shm/cross_copy.h"

#include <poll.h>

#include <array>
#include <cerrno>

#include "base/strings.h"

namespace weightcast::transport::shm {
namespace {

CrossCopy::Outcome ToOutcome(ssize_t copied) {
  if (copied > 0) return {.bytes = static_cast<size_t>(copied), .error = 0};
  return {.bytes = 0, .error = copied == 0 ? EFAULT : errno};
}

}  // namespace

bool CrossCopy::Gone() const {
  if (!channel_->valid()) return true;
  std::array<pollfd, 2> ends = {pollfd{.fd = pidfd_->get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = channel_->fd(), .events = 0, .revents = 0}};
  return poll(ends.data(), ends.size(), 0) > 0;
}

CrossCopy::Outcome CrossCopy::Write(std::span<const iovec> local, std::span<const iovec> remote) const {
  if (Gone()) return {.bytes = 0, .error = ESRCH};
  return ToOutcome(process_vm_writev(pid_, local.data(), local.size(), remote.data(), remote.size(), 0));
}

CrossCopy::Outcome CrossCopy::Read(std::span<const iovec> local, std::span<const iovec> remote) const {
  if (Gone()) return {.bytes = 0, .error = ESRCH};
  return ToOutcome(process_vm_readv(pid_, local.data(), local.size(), remote.data(), remote.size(), 0));
}

Code CrossCopy::CodeOf(int error) {
  if (error == EPERM || error == EACCES || error == ENOSYS) return Code::kUnavailable;
  if (error == EFAULT) return Code::kOutOfBounds;
  return error == ENOMEM ? Code::kExhausted : Code::kInternal;
}

std::string CrossCopy::Try(uint64_t cell_address, uint64_t nonce, uint64_t echo) const {
  uint64_t found = 0;
  const iovec into{.iov_base = &found, .iov_len = sizeof found};
  const iovec there{.iov_base = reinterpret_cast<void*>(cell_address + offsetof(TrialCell, nonce)),
                    .iov_len = sizeof nonce};
  const Outcome read = Read({&into, 1}, {&there, 1});
  if (read.bytes != sizeof found) return StrCat("process_vm_readv: ", ErrnoText(read.error));
  if (found != nonce) return "its pid stands for another process here";
  const iovec from{.iov_base = &echo, .iov_len = sizeof echo};
  const iovec cell{.iov_base = reinterpret_cast<void*>(cell_address + offsetof(TrialCell, echo)),
                   .iov_len = sizeof echo};
  const Outcome written = Write({&from, 1}, {&cell, 1});
  if (written.bytes != sizeof echo) return StrCat("process_vm_writev: ", ErrnoText(written.error));
  return {};
}

}  // namespace weightcast::transport::shm
