#include "gpu/probe/peer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "gpu/probe/driver.h"

namespace probe {
namespace {

constexpr int kParentSocket = 3;

struct Sockets {
  int pair[2];
};

Sockets MakeSockets() {
  Sockets made{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, made.pair) != 0)
    Fail(std::string("no socket: ") + std::strerror(errno));
  return made;
}

/// Between fork and exec: only system calls.
[[noreturn]] void Become(int socket, pid_t parent, char* const* arguments) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(2);
  if (socket == kParentSocket) {
    fcntl(socket, F_SETFD, 0);
  } else if (dup2(socket, kParentSocket) < 0) {
    _exit(2);
  }
  close_range(kParentSocket + 1, ~0U, 0);  // The driver's descriptors would keep this process's work alive.
  execv("/proc/self/exe", arguments);
  _exit(2);
}

}  // namespace

Channel::~Channel() {
  if (socket_ >= 0) close(socket_);
}

void Channel::Gone() { Fail("another process of the experiment has ended, or does not answer"); }

bool Channel::Write(const void* bytes, size_t size, const std::vector<int>& fds) const {
  iovec part{const_cast<void*>(bytes), size};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  return sendmsg(socket_, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

bool Channel::Read(void* bytes, size_t size, std::vector<int>* fds, double seconds) const {
  pollfd polled{socket_, POLLIN, 0};
  if (poll(&polled, 1, static_cast<int>(1000 * seconds)) != 1) return false;
  iovec part{bytes, size};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(socket_, &message, MSG_CMSG_CLOEXEC);
  for (cmsghdr* header = got < 0 ? nullptr : CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    std::vector<int> received((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(received.data(), CMSG_DATA(header), received.size() * sizeof(int));
    for (const int fd : received) {
      if (fds != nullptr)
        fds->push_back(fd);
      else
        close(fd);
    }
  }
  return got == static_cast<ssize_t>(size);
}

Peer::Peer(const std::vector<std::string>& arguments) : Peer(arguments, MakeSockets().pair) {}

Peer::Peer(const std::vector<std::string>& arguments, const int (&sockets)[2]) : channel_(sockets[0]) {
  std::vector<std::string> words = {"probe"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> raw;
  for (std::string& word : words) raw.push_back(word.data());
  raw.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) Become(sockets[1], parent, raw.data());
  close(sockets[1]);
  if (pid_ < 0) Fail(std::string("no process: ") + std::strerror(errno));
}

void Peer::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::optional<int> Peer::Wait(double seconds) {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  if (process < 0) Fail(std::string("no pidfd: ") + std::strerror(errno));
  pollfd polled{process, POLLIN, 0};
  const bool over = poll(&polled, 1, static_cast<int>(1000 * seconds)) == 1;
  close(process);
  if (!over) {
    Kill();
    return std::nullopt;
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return status;
}

const Channel& Parent() {
  static const auto* const channel = new Channel(kParentSocket);
  return *channel;
}

}  // namespace probe
