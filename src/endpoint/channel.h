#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "base/fd.h"
#include "endpoint/message.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::endpoint {

/// Messages over a non-blocking stream socket, bounded in both directions. Belongs to the holder of progress.
class Channel {
 public:
  static constexpr size_t kMaxUnproven = 2048;     ///< Payload until both sides have proven themselves.
  static constexpr size_t kMaxPayload = 64 << 10;  ///< Payload later.
  static constexpr size_t kMaxQueued = 1 << 20;    ///< Bytes that may wait for a peer that does not read.

  explicit Channel(UniqueFd fd) : fd_(std::move(fd)) {}

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// Longest payload taken from the peer.
  void set_limit(size_t limit) { limit_ = limit; }

  /// Queues the message and sends what the socket takes. kExhausted: the peer reads nothing.
  Status Send(const Message& message);
  /// Sends more of what waits.
  Status Flush();
  /// True while something waits: watch for writability.
  [[nodiscard]] bool waiting() const { return !out_.empty(); }

  /// Reads what has come, a bounded amount at a time; how many bytes. kUnavailable: the peer has closed;
  /// messages that came before are still there.
  Result<size_t> Receive();
  /// The next whole message; nothing when there is none. kProtocol: longer than the limit.
  Result<std::optional<Message>> Next();
  /// When something was read last.
  [[nodiscard]] TimePoint heard() const { return heard_; }

 private:
  UniqueFd fd_;
  size_t limit_ = kMaxUnproven;
  std::string in_;
  size_t taken_ = 0;  ///< Of in_, by Next.
  std::string out_;
  TimePoint heard_{};
};

}  // namespace weightcast::endpoint
