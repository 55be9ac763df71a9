#include "fake_cuda/dmabuf.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace weightcast::fake_cuda {
namespace {

constexpr uint64_t kMagic = 0x6675626d61646b66;

struct Message {
  uint64_t magic = kMagic;
  uint64_t count = 0;
  struct {
    uint64_t offset = 0;
    uint64_t length = 0;
  } parts[kMostDmaBufParts];
};

using Control = std::array<char, CMSG_SPACE(kMostDmaBufParts * sizeof(int))>;

/// What waits in the socket; it goes on waiting there. The descriptors are the caller's.
std::vector<DmaBufPart> Peek(int fd) {
  Message message;
  iovec bytes{&message, sizeof message};
  alignas(cmsghdr) Control control{};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t got = recvmsg(fd, &header, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got != sizeof message || message.magic != kMagic || message.count > kMostDmaBufParts) return {};
  const cmsghdr* const files = CMSG_FIRSTHDR(&header);
  if (files == nullptr || files->cmsg_len != CMSG_LEN(message.count * sizeof(int))) return {};
  std::vector<DmaBufPart> parts(message.count);
  for (size_t i = 0; i < parts.size(); ++i) {
    std::memcpy(&parts[i].fd, CMSG_DATA(files) + i * sizeof(int), sizeof(int));
    parts[i].offset = message.parts[i].offset;
    parts[i].length = message.parts[i].length;
  }
  return parts;
}

}  // namespace

int MakeDmaBuf(const std::vector<DmaBufPart>& parts, int& watch) {
  if (parts.empty() || parts.size() > kMostDmaBufParts) return -1;
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return -1;
  Message message;
  message.count = parts.size();
  alignas(cmsghdr) Control control{};
  iovec bytes{&message, sizeof message};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = CMSG_SPACE(parts.size() * sizeof(int));
  cmsghdr* const files = CMSG_FIRSTHDR(&header);
  files->cmsg_level = SOL_SOCKET;
  files->cmsg_type = SCM_RIGHTS;
  files->cmsg_len = CMSG_LEN(parts.size() * sizeof(int));
  for (size_t i = 0; i < parts.size(); ++i) {
    message.parts[i] = {parts[i].offset, parts[i].length};
    std::memcpy(CMSG_DATA(files) + i * sizeof(int), &parts[i].fd, sizeof(int));
  }
  if (sendmsg(ends[0], &header, MSG_NOSIGNAL) != sizeof message) {
    close(ends[0]);
    close(ends[1]);
    return -1;
  }
  watch = ends[0];
  return ends[1];
}

void* MapDmaBuf(int fd, uint64_t offset, size_t length) {
  const std::vector<DmaBufPart> parts = Peek(fd);
  void* const place = mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  uint64_t done = 0;
  uint64_t skip = offset;
  for (const DmaBufPart& part : parts) {
    const uint64_t skipped = std::min(skip, part.length);
    skip -= skipped;
    const uint64_t piece = std::min(part.length - skipped, length - done);
    if (piece > 0 && place != MAP_FAILED) {
      void* const mapped = mmap(static_cast<char*>(place) + done, piece, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED, part.fd, static_cast<off_t>(part.offset + skipped));
      if (mapped != MAP_FAILED) done += piece;
    }
    close(part.fd);
  }
  if (place != MAP_FAILED && done == length) return place;
  if (place != MAP_FAILED) munmap(place, length);
  errno = EINVAL;
  return nullptr;
}

}  // namespace weightcast::fake_cuda
