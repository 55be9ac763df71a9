#include "endpoint/channel.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/advice.h"
#include "base/bytes.h"
#include "base/strings.h"

namespace weightcast::endpoint {
namespace {

constexpr size_t kHeader = sizeof(uint32_t) + sizeof(uint8_t);
/// A peer that sends without end gets its turn again after the others.
constexpr size_t kReadAtOnce = 64 << 10;

}  // namespace

Status Channel::Send(const Message& message) {
  if (out_.size() + kHeader + message.payload.size() > kMaxQueued) {
    return Error(Code::kExhausted, "it reads none of the messages that are sent to it", kSeePeer);
  }
  out_ += PackBytes(static_cast<uint32_t>(message.payload.size()), message.type);
  out_ += message.payload;
  return Flush();
}

Status Channel::Flush() {
  size_t sent = 0;
  Status status;
  while (sent < out_.size()) {
    const ssize_t count =
        send(fd_.get(), out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      if (errno != EAGAIN) status = {Code::kUnavailable, ErrnoText(errno)};
      break;
    }
  }
  out_.erase(0, sent);
  return status;
}

Result<size_t> Channel::Receive() {
  std::array<char, 8192> buffer;
  in_.erase(0,
            std::exchange(taken_, 0));  // Once for many messages: many small ones cost no copies of the rest.
  size_t total = 0;
  while (total < kReadAtOnce && in_.size() < limit_ + buffer.size()) {
    const ssize_t count = recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count > 0) {
      heard_ = Clock::now();
      in_.append(buffer.data(), static_cast<size_t>(count));
      total += static_cast<size_t>(count);
      if (static_cast<size_t>(count) < buffer.size()) break;
    } else if (count == 0) {
      return Status(Code::kUnavailable, "it closed the connection without saying why");
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      return Status(Code::kUnavailable, ErrnoText(errno));
    }
  }
  return total;
}

Result<std::optional<Message>> Channel::Next() {
  const std::string_view rest = std::string_view(in_).substr(taken_);
  ByteReader header(rest);
  const auto size = header.Get<uint32_t>();
  const auto type = header.Get<uint8_t>();
  if (rest.size() >= sizeof size && size > limit_) {
    return Error(Code::kProtocol, "it sent a message of ", size, " bytes; at most ", limit_,
                 " are allowed: check that both sides are weightcast endpoints of the same release");
  }
  if (!header.ok() || rest.size() - kHeader < size) return std::optional<Message>();
  Message message{static_cast<MessageType>(type), std::string(rest.substr(kHeader, size))};
  taken_ += kHeader + size;
  return std::optional<Message>(std::move(message));
}

}  // namespace weightcast::endpoint
