#include "tools/demo/messages.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/socket.h"
#include "base/strings.h"

namespace weightcast::tools {

Status SendDatagram(int fd, std::string_view bytes) {
  for (;;) {
    if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0) return Status::Ok();
    if (errno == EINTR) continue;
    return Error(Code::kUnavailable, "the demo that started this process has exited: ", ErrnoText(errno),
                 "; see the demo's output");
  }
}

Result<std::optional<std::string>> ReceiveDatagram(int fd, TimePoint deadline) {
  if (!WaitFor(fd, POLLIN, deadline))
    return Status(Code::kTimedOut,
                  "no message has come from another process of the demo; see the logs of the demo");
  std::string bytes(256 << 10, '\0');
  for (;;) {
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::optional<std::string>();
    bytes.resize(static_cast<size_t>(got));
    return std::optional<std::string>(std::move(bytes));
  }
}

}  // namespace weightcast::tools
