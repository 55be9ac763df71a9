#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "stream/frame.h"
#include "stream/role.h"
#include "stream/token.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::stream {

/// One stream after another to a controller, driven by one thread of the caller's: everything but Wake
/// belongs to that thread. Only Next waits.
class ClientStream {
 public:
  struct Target {
    std::string address;  ///< "host:port"; the name is resolved again.
    uint32_t version = 0;
    RoleToken token;
    Purpose purpose = Purpose::kControl;  ///< Or kObserve.
    Duration lease{};                     ///< A controller whose host does not answer for so long is gone.
    size_t most_queued = size_t{4} << 20;
  };
  struct Event {
    enum class Kind : uint8_t {
      kNone,
      kWoken,
      kOpened,   ///< The controller has proven itself.
      kPartial,  ///< A part of a body: a sign of life.
      kMessage,
      kRoom,    ///< Less than kLowWater waits after something has gone out.
      kClosed,  ///< The reason of who ended it, or why it was never opened. Connect may follow.
    };
    Kind kind = Kind::kNone;
    std::string body = {};  ///< kMessage.
    Status reason = {};     ///< kClosed.
  };

  static Result<std::unique_ptr<ClientStream>> Create();
  virtual ~ClientStream() = default;

  /// Looks for the controller at all addresses, until it has failed at each: a silent one keeps it looking,
  /// and the caller Aborts when it has waited enough. None may be open or looked for. Errors, with nothing
  /// begun: kInvalidArgument for the address, kPermission where the token has no key of the purpose.
  virtual Status Connect(Target target) = 0;
  /// Queues a body. Errors: kCancelled unless opened; kExhausted, more would wait than may: kClosed follows.
  virtual Status Send(std::string_view body) = 0;
  [[nodiscard]] virtual size_t queued() const = 0;
  /// Ends it once what is queued, and the reason, have gone out: kClosed follows, with this reason. The
  /// caller goes on with Next until then.
  virtual void Close(const Status& reason) = 0;
  /// Ends it at once, or stops looking. Nothing follows.
  virtual void Abort() = 0;
  /// Connected, and not closed.
  [[nodiscard]] virtual bool active() const = 0;

  /// The next event; kNone at `until`.
  virtual Event Next(TimePoint until) = 0;
  /// Ends a wait in Next, now or the next one. Any thread.
  virtual void Wake() = 0;
};

}  // namespace weightcast::stream
