#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace weightcast::fake_cuda {

/// The files of a machine in its folder.
inline constexpr const char* kSocketName = "gpu.sock";
inline constexpr const char* kLockName = "gpu.lock";
inline constexpr const char* kLogName = "gpu.log";

/// A listener (`listening`) or a connection at DIR/gpu.sock, however long DIR is; -1 with errno.
int OpenSocket(const std::string& dir, bool listening);
/// One message with a descriptor, or without (-1). False: the other end is gone.
bool SendMessage(int socket, const void* bytes, size_t length, int fd);
/// Length of the message; 0: the other end is gone; -1: there is none (only with `wait` false). `fd` is -1
/// where none came.
ssize_t ReceiveMessage(int socket, void* bytes, size_t length, int& fd, bool wait);

}  // namespace weightcast::fake_cuda
