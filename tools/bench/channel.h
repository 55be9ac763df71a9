#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "base/fd.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// A stream socket that carries whole messages between the process that measures and one of those that
/// transfer, of this host or another.
class BenchChannel {
 public:
  BenchChannel() = default;
  explicit BenchChannel(UniqueFd fd) : fd_(std::move(fd)) {}
  [[nodiscard]] int fd() const { return fd_.get(); }
  void Close() { fd_.reset(); }

  [[nodiscard]] Status Send(std::string_view message) const;
  /// The next message. Errors: kPeerDead when the other side has gone, kTimedOut, kProtocol when it is
  /// longer than `limit`.
  [[nodiscard]] Result<std::string> Receive(TimePoint deadline, size_t limit) const;
  /// An answer: an error of the other side, or what it has to tell.
  [[nodiscard]] Status Answer(const Status& status, std::string_view bytes) const;
  [[nodiscard]] Result<std::string> TakeAnswer(TimePoint deadline) const;

 private:
  UniqueFd fd_;
};

/// The next answer, while this process has not been asked to end. Errors: what went wrong at the other side;
/// kTimedOut, kCancelled.
Result<std::string> AwaitAnswer(const BenchChannel& channel, double seconds);

/// Two ends of one such stream, within this host.
struct ChannelPair {
  BenchChannel a;
  BenchChannel b;
};
Result<ChannelPair> MakeChannelPair();

}  // namespace weightcast::tools
