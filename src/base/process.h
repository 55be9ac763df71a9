#pragma once

#include <cstddef>
#include <string>

#include "base/fd.h"
#include "weightcast/status.h"

namespace weightcast {

/// A handle that names one process for ever, even when its pid is used again. The pid must come
/// from a socket's credentials, never from a message.
Result<UniqueFd> OpenPidFd(int pid);
/// True once the process has exited: from then on it writes nothing any more.
bool HasExited(const UniqueFd& pidfd);
/// Ok if this process may open so many more descriptors; kExhausted says what its limit is. Asked at a start,
/// so that a limit too low shows there and not under load.
Status CheckDescriptors(size_t wanted);
/// How many descriptors this process may have open.
size_t DescriptorLimit();
/// Raises that limit as far as this process may. Before children are started: they inherit it.
void RaiseDescriptorLimit();
/// Names the calling thread (at most 15 characters) for debuggers and `top -H`.
void NameThread(const char* name);
/// This host's name, a label only.
std::string HostName();
/// /proc/sys/kernel/random/boot_id: equal for processes of one running kernel. A hint, no proof of
/// sharing memory.
std::string BootId();

}  // namespace weightcast
