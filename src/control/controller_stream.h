#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "control/packet.h"
#include "control/session_link.h"
#include "stream/client.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// A client's session over one stream after another: sends what a link holds, and puts messages together.
/// Driven by one thread of the caller's: everything but Wake belongs to that thread.
class ControllerStream {
 public:
  /// Errors: kExhausted, no descriptors.
  static Result<std::unique_ptr<ControllerStream>> Create();

  /// Opens a stream of this release's version that sends what `link` holds; nullptr: nothing. None may be
  /// open. Errors, with nothing begun: those of ClientStream::Connect.
  Status Connect(stream::ClientStream::Target target, std::shared_ptr<SessionLink> link);
  /// Sends what is new in the link.
  void Kick();
  /// Ends the stream at once. Nothing follows.
  void Abort() { stream_->Abort(); }
  [[nodiscard]] bool open() const { return stream_->active(); }

  struct Event {
    enum class Kind : uint8_t {
      kNone,
      kWoken,
      kPiece,  ///< A part of a message: a sign of life.
      kMessage,
      kClosed,
    };
    Kind kind = Kind::kNone;
    // kMessage:
    uint64_t number = 0;
    uint64_t acknowledged = 0;
    uint64_t session = 0;
    EncodedMessage message = {};
    /// kClosed: kPermission for a wrong token or an impostor, kProtocol for what is no controller of this
    /// release, otherwise kUnavailable.
    Status reason = {};
  };
  /// The next event; kNone at `until`. Sends what is new in the link, too.
  Event Next(TimePoint until);
  /// Ends a wait in Next, now or the next one. Any thread.
  void Wake() { stream_->Wake(); }

 private:
  explicit ControllerStream(std::unique_ptr<stream::ClientStream> stream) : stream_(std::move(stream)) {}
  Event Take(std::string body);
  [[nodiscard]] Status WhyClosed(const Status& reason) const;

  const std::unique_ptr<stream::ClientStream> stream_;
  std::string address_;
  std::shared_ptr<SessionLink> link_;
  Assembler assembler_;
  bool proven_ = false;  ///< The controller has shown that it is one.
};

}  // namespace weightcast::control
