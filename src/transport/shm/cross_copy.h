#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/fd.h"
#include "transport/shm/channel.h"
#include "transport/shm/layout.h"
#include "weightcast/status.h"

namespace weightcast::transport::shm {

/// Eight bytes on each side that prove whose memory a pid stands for. Stays at its address.
struct TrialCell {
  Word nonce{0};
  Word echo{0};
};

/// Copies between this process and one other, done by the kernel (process_vm_writev, process_vm_readv).
/// The kernel asks for the right to trace that process, at each call.
class CrossCopy {
 public:
  /// Bytes copied, whole pieces in order; with 0 bytes `error` is the errno of the first piece.
  struct Outcome {
    size_t bytes = 0;
    int error = 0;
  };

  CrossCopy() = default;
  /// `pidfd` must be of `pid`: it tells when the number stands for nobody or for somebody else. `channel`
  /// leads to that process: it is hung up when the process begins another program, under the same number.
  CrossCopy(int pid, const UniqueFd* pidfd, const Channel* channel)
      : pid_(pid), pidfd_(pidfd), channel_(channel) {}

  [[nodiscard]] Outcome Write(std::span<const iovec> local, std::span<const iovec> remote) const;
  [[nodiscard]] Outcome Read(std::span<const iovec> local, std::span<const iovec> remote) const;

  /// Of an error but ESRCH; kUnavailable: the system permits it no more (a filter or a limit came in
  /// between).
  [[nodiscard]] static Code CodeOf(int error);

  /// Reads the peer's nonce and leaves `echo` in its cell. Empty on success, else why not.
  [[nodiscard]] std::string Try(uint64_t cell_address, uint64_t nonce, uint64_t echo) const;

 private:
  /// Whose memory this was is no more.
  [[nodiscard]] bool Gone() const;

  int pid_ = 0;
  const UniqueFd* pidfd_ = nullptr;
  const Channel* channel_ = nullptr;
};

}  // namespace weightcast::transport::shm
