#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "stream/frame.h"
#include "stream/role.h"
#include "stream/token.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::stream {

/// A client that has proven its role. To be used on the server's thread only, also when it is over: its calls
/// then do nothing, and Send fails. What they cause is done at the end of the turn: no handler runs inside
/// them.
class ServerStream {
 public:
  virtual ~ServerStream() = default;
  [[nodiscard]] virtual const Member& member() const = 0;
  [[nodiscard]] virtual const std::string& peer() const = 0;  ///< Its address.

  /// Queues a body. Errors: kExhausted, more would wait than may: the stream is dropped for it; kCancelled
  /// when it is over; kInvalidArgument for a body above kMostFrameBytes.
  virtual Status Send(std::string_view body) = 0;
  /// Bytes that wait to be sent.
  [[nodiscard]] virtual size_t queued() const = 0;
  /// Nothing is heard from here on until Resume, so that who sends faster than it is heard is slowed down.
  virtual void Pause() = 0;
  virtual void Resume() = 0;
  /// Ends it once what is queued, and the reason, have gone out; after two seconds in any case.
  virtual void Close(const Status& reason) = 0;
  /// Ends it at once.
  virtual void Abort(const Status& reason) = 0;
};

/// Called on the server's thread; must not block.
struct ServerHandlers {
  std::function<void(const std::shared_ptr<ServerStream>&)> on_open;
  std::function<void(const std::shared_ptr<ServerStream>&, std::string body)> on_message;
  /// Less than kLowWater waits after something has gone out.
  std::function<void(const std::shared_ptr<ServerStream>&)> on_room = {};
  /// Once for each that was opened, with the reason of whoever ended it.
  std::function<void(const std::shared_ptr<ServerStream>&, const Status&)> on_closed;
};

struct ServerOptions {
  std::string host;
  uint16_t port = 0;  ///< 0: any.
  uint32_t version = 0;
  MasterToken master;
  Duration lease{};  ///< A peer whose host does not answer for so long is gone.
  size_t most_queued = size_t{4} << 20;
  /// With strangers: to their ClientHello, and from it to their proof.
  Duration patience = std::chrono::seconds(5);
  size_t most_handshakes = 256;
  ServerHandlers handlers;
};

/// Takes the streams of those who have a key of the job. Two threads: one looks at strangers, one owns the
/// streams (docs/streams.md).
class StreamServer {
 public:
  /// Errors: those of ListenAtName; kExhausted.
  static Result<std::unique_ptr<StreamServer>> Start(ServerOptions options);
  virtual ~StreamServer() = default;
  [[nodiscard]] virtual uint16_t port() const = 0;
  /// Runs `task` on the server's thread, soon. Any thread. Dropped once stopped.
  virtual void Post(std::function<void()> task) = 0;
  /// Ends every stream; no handler runs afterwards. Bounded. Not from a handler.
  virtual void Stop() = 0;
};

}  // namespace weightcast::stream
