#include "transport/tcp/send_batch.h"

#include <sys/socket.h>

#include <cerrno>

namespace weightcast::transport::tcp {
namespace {
// Never written: const would put it into the file of the program.
std::array<std::byte, kDataPiece> zeros;
}  // namespace

void SendBatch::Add(const Frame& frame) {
  auto& out = frames_[frame_count_++];
  const size_t size = EncodeFrame(frame, out);
  iov_[iov_count_] = {.iov_base = out.data(), .iov_len = size};
  served_[iov_count_++] = nullptr;
  bytes_ += size;
}

void SendBatch::AddPayload(std::byte* bytes, uint64_t length, const LocalRegion* served) {
  if (length == 0) return;
  iov_[iov_count_] = {.iov_base = bytes, .iov_len = length};
  served_[iov_count_++] = served;
  bytes_ += length;
}

SendBatch::Outcome SendBatch::Send(int socket, bool alone) {
  while (!empty()) {
    // What one call takes is acknowledged only when it ends, so what goes alone goes in pieces. Where more is
    // under way that costs nothing, and fewer calls are better.
    const size_t most = alone ? kCall : bytes_;
    size_t count = 0;
    size_t asked = 0;
    while (next_iov_ + count < iov_count_ && asked < most) asked += iov_[next_iov_ + count++].iov_len;
    const size_t cut = asked > most + kSlack ? asked - most : 0;
    iovec& last = iov_[next_iov_ + count - 1];
    last.iov_len -= cut;
    msghdr message{};
    message.msg_iov = &iov_[next_iov_];
    message.msg_iovlen = count;
    const ssize_t sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    last.iov_len += cut;
    if (sent > 0) {
      Advance(static_cast<size_t>(sent));
      // Less than asked: the socket is full, and asking it again at once is a wasted call.
      if (static_cast<size_t>(sent) < asked - cut) return Outcome::kBlocked;
      continue;
    }
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return Outcome::kBlocked;
    }
    if (sent < 0 && errno != EINTR) return Outcome::kFailed;
  }
  return Outcome::kSent;
}

void SendBatch::Advance(size_t sent) {
  bytes_ -= sent;
  while (sent > 0 && sent >= iov_[next_iov_].iov_len) sent -= iov_[next_iov_++].iov_len;
  if (empty()) {
    frame_count_ = iov_count_ = next_iov_ = 0;
    return;
  }
  auto& first = iov_[next_iov_];
  first = {.iov_base = static_cast<std::byte*>(first.iov_base) + sent, .iov_len = first.iov_len - sent};
}

void SendBatch::Forget(const LocalRegion& region) {
  for (size_t i = next_iov_; i < iov_count_; ++i) {
    if (served_[i] != &region) continue;
    iov_[i].iov_base = zeros.data();  // A piece is never longer.
    served_[i] = nullptr;
  }
}

}  // namespace weightcast::transport::tcp
