#pragma once

#include <memory>
#include <string>

#include "control/session_link.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

/// The network as a client sees it. grpc_conduit.cc is the only file behind it.
namespace weightcast::control {

/// One stream after another to a controller, driven by one thread of the caller's: everything but Wake
/// belongs to that thread.
class Conduit {
 public:
  static std::unique_ptr<Conduit> Create();
  /// Cancels what is under way. Bounded.
  virtual ~Conduit() = default;

  struct Target {
    std::string address;  ///< "host:port"; the name is resolved anew.
    std::string token;
    Duration lease{};
  };
  /// Opens a stream that sends what `link` holds. None may be open.
  virtual void Dial(const Target& target, std::shared_ptr<SessionLink> link) = 0;
  /// Sends what is new in the link.
  virtual void Kick() = 0;
  /// Cancels the stream; kClosed follows.
  virtual void Abort() = 0;
  [[nodiscard]] virtual bool open() const = 0;

  struct Event {
    enum class Kind {
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
    Parcel parcel;
    // kClosed: kPermission for a wrong token, kProtocol for what is no controller, otherwise kUnavailable.
    Status reason;
  };
  /// The next event; kNone at `until`.
  virtual Event Next(TimePoint until) = 0;
  /// Ends a wait in Next, now or the next one. Any thread.
  virtual void Wake() = 0;
};

}  // namespace weightcast::control
