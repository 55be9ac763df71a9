#pragma once

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "weightcast/status.h"

namespace weightcast::transport::shm {

/// A Unix socket that keeps messages apart (SOCK_SEQPACKET) and carries descriptors. Nothing blocks. Used
/// to set links up, for what is rare afterwards, and to wake a sleeping peer; its hang-up reports the
/// peer's end. (A doorbell of the peer's, an eventfd say, could be made to block us.)
class Channel {
 public:
  static constexpr size_t kMostBytes = 512;  ///< Of one message.
  static constexpr size_t kMostFds = 32;
  /// Messages that may wait for room; a peer that does not read is not answered for ever.
  static constexpr size_t kMostWaiting = 256;

  struct Incoming {
    std::string bytes;
    std::vector<UniqueFd> fds;
  };

  Channel() = default;
  explicit Channel(UniqueFd socket) : socket_(std::move(socket)) {}

  /// A listener at an abstract name (without the leading zero).
  static Result<UniqueFd> Listen(std::string_view name);
  /// Connects at once or not at all. kUnavailable: nobody there; kExhausted: try again later.
  static Result<Channel> Connect(std::string_view name);

  /// Sends, or keeps the message (with copies of the descriptors) until Flush.
  Status Send(std::string_view bytes, std::span<const int> fds = {});
  Status Flush();
  /// Wakes a peer that sleeps on its end: sends Encode(Bell). Where there is no room, enough is there to wake
  /// it.
  void Ring() const;
  /// The next message; nullopt: none now. kUnavailable: the other side is closed.
  Result<std::optional<Incoming>> Receive();

  [[nodiscard]] bool waiting() const { return !waiting_.empty(); }
  /// So much waits to be sent that nothing more should be read which needs an answer.
  [[nodiscard]] bool congested() const { return waiting_.size() >= kMostWaiting / 2; }
  [[nodiscard]] bool valid() const { return socket_.valid(); }
  /// "pid 7", for texts.
  [[nodiscard]] std::string PeerName() const;
  [[nodiscard]] int fd() const { return socket_.get(); }
  void Close() { socket_.reset(); }

 private:
  UniqueFd socket_;
  std::deque<Incoming> waiting_;
};

}  // namespace weightcast::transport::shm
