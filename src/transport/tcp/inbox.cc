#include "transport/tcp/inbox.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

namespace weightcast::transport::tcp {

Inbox::Outcome Inbox::Receive(int socket, size_t budget, FrameHandler& handler) {
  size_t received = 0;
  bool drained = false;
  while (true) {
    // Everything that is here goes first; then either the handler pauses or bytes are missing.
    while (TakeBuffered(handler)) {
    }
    if (!violation_.empty()) return Outcome::kViolation;
    if (!in_payload_ && handler.Paused()) return Outcome::kMore;
    if (in_payload_ && sink_ != nullptr) {
      if (sink_->Room().empty()) return Outcome::kStalled;
      if (begin_ < end_) continue;  // It had no room until now: these come before what is in the socket.
    }
    if (received >= budget) return Outcome::kMore;
    if (drained) return Outcome::kEmpty;
    const auto [got, asked] = ReceiveSome(socket, budget - received);
    if (got == 0) return Outcome::kClosed;
    if (got < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK ? Outcome::kEmpty : Outcome::kFailed;
    }
    // Less than asked: there was no more, and asking again at once is a wasted call.
    drained = static_cast<size_t>(got) < asked;
    received += static_cast<size_t>(got);
    Account(static_cast<size_t>(got));
  }
}

bool Inbox::TakeBuffered(FrameHandler& handler) {
  if (!violation_.empty()) return false;
  if (in_payload_) {
    TakePayload();
    return left_ == 0 && EndPayload(handler);
  }
  return !handler.Paused() && TakeFrame(handler);
}

/// Where the payload's next bytes go, as many as fit in one piece.
std::span<std::byte> Inbox::Place() {
  if (sink_ == nullptr) return {place_, left_};
  const auto room = sink_->Room();
  return room.first(std::min<uint64_t>(left_, room.size()));
}

/// They are there.
void Inbox::Fill(size_t bytes) {
  if (sink_ != nullptr) sink_->Filled(bytes);
  if (place_ != nullptr) place_ += bytes;
  left_ -= bytes;
}

void Inbox::TakePayload() {
  while (left_ > 0 && begin_ < end_) {
    const auto place = Place();
    const size_t size = std::min(place.size(), end_ - begin_);
    if (size == 0) return;
    if (place.data() != nullptr) std::memcpy(place.data(), &buffer_[begin_], size);
    begin_ += size;
    Fill(size);
  }
}

bool Inbox::TakeFrame(FrameHandler& handler) {
  const auto parsed = ParseFrame(std::span(buffer_).subspan(begin_, end_ - begin_), frame_);
  if (parsed.outcome == ParsedFrame::Outcome::kShort) return false;
  if (parsed.outcome == ParsedFrame::Outcome::kMalformed) {
    Violate(parsed.what);
    return false;
  }
  begin_ += parsed.size;
  const Verdict verdict = handler.OnFrame(frame_);
  if (!verdict.violation.empty()) {
    Violate(verdict.violation);
    return false;
  }
  in_payload_ = frame_.type == FrameType::kWrite || frame_.type == FrameType::kData;
  place_ = verdict.place;
  sink_ = verdict.sink;
  left_ = frame_.payload();
  return true;
}

bool Inbox::EndPayload(FrameHandler& handler) {
  in_payload_ = false;
  Divert();
  if (const auto violation = handler.OnPayload(frame_); !violation.empty()) Violate(violation);
  return violation_.empty();
}

Inbox::Received Inbox::ReceiveSome(int socket, size_t budget) {
  if (in_payload_ && place_ == nullptr && sink_ == nullptr) {
    // For TCP this throws the bytes away without copying them.
    const size_t size = std::min<uint64_t>(left_, budget);
    return {recv(socket, nullptr, size, MSG_DONTWAIT | MSG_TRUNC), size};
  }
  if (begin_ > 0) {
    std::memmove(buffer_.data(), &buffer_[begin_], end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  std::array<iovec, 2> iov{};
  size_t count = 0;
  const auto place = in_payload_ ? Place() : std::span<std::byte>();
  const uint64_t direct = std::min(place.size(), budget);
  if (direct > 0) iov[count++] = {.iov_base = place.data(), .iov_len = direct};
  // The frames behind a payload come with its last bytes.
  if (direct == (in_payload_ ? left_ : 0)) {
    iov[count++] = {.iov_base = &buffer_[end_], .iov_len = buffer_.size() - end_};
  }
  msghdr message{};
  message.msg_iov = iov.data();
  message.msg_iovlen = count;
  return {recvmsg(socket, &message, MSG_DONTWAIT), iov[0].iov_len + iov[1].iov_len};
}

void Inbox::Account(size_t received) {
  received_ += received;
  if (in_payload_) {
    const size_t direct = std::min<uint64_t>(left_, received);
    Fill(direct);
    received -= direct;
  }
  end_ += received;
}

}  // namespace weightcast::transport::tcp
