#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "peertest/messages.h"
#include "stream/client.h"
#include "stream/token.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::peertest {

inline constexpr auto kConnectTime = std::chrono::seconds(5);
inline constexpr auto kAnswerTime = std::chrono::seconds(10);  ///< For an answer that needs no work.

/// A conversation with a host that serves. One thread's.
class Caller {
 public:
  struct Options {
    std::string address = {};  ///< "host:port"; numeric where one of several addresses is meant.
    stream::RoleToken token;
    TimePoint deadline = {};                 ///< Of the connection.
    std::function<bool()> interrupted = {};  ///< Looked at about ten times a second.
  };
  struct Opened {
    std::unique_ptr<Caller> caller;  ///< Null: `failure` says why.
    Failure failure;
  };
  static Opened Connect(Options options);

  /// Asks, and waits for the answer, for `patience`. Errors: the other side's; kUnavailable where the
  /// conversation ended; kTimedOut, after which it is over; kProtocol.
  template <typename Answer>
  Result<Answer> Ask(const Request& request, Duration patience) {
    WC_RETURN_IF_ERROR(Send(request));
    return Take<Answer>(patience);
  }
  /// The two halves of Ask, for what both sides do at once.
  Status Send(const Request& request);
  template <typename Answer>
  Result<Answer> Take(Duration patience) {
    WC_ASSIGN_OR_RETURN(Reply reply, Receive(patience));
    if (auto* answer = std::get_if<Answer>(&reply)) return std::move(*answer);
    return WrongAnswer();
  }

 private:
  Caller(std::unique_ptr<stream::ClientStream> stream, Options options)
      : stream_(std::move(stream)), options_(std::move(options)) {}
  Failure Open();
  Result<Reply> Receive(Duration patience);
  [[nodiscard]] Status WrongAnswer() const;
  /// The next event that says something, or kTimedOut.
  Result<stream::ClientStream::Event> Next(TimePoint deadline);
  static bool Tells(const stream::ClientStream::Event& event);

  const std::unique_ptr<stream::ClientStream> stream_;
  const Options options_;
  std::optional<stream::ClientStream::Event> early_;  ///< Came while a question was sent.
  Status over_;                                       ///< Why nothing more can be asked.
};

}  // namespace weightcast::peertest
