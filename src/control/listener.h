#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "control/session_link.h"
#include "protocol/messages.h"
#include "protocol/observer_messages.h"
#include "stream/role.h"
#include "stream/token.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

/// The network as the controller sees it. stream_listener.cc is the only file behind it.
namespace weightcast::control {

/// A whole message and what its envelope says.
struct Incoming {
  uint64_t number = 0;
  uint64_t acknowledged = 0;
  uint64_t session = 0;
  size_t bytes = 0;  ///< Of the encoded message.
  protocol::WorkerMessage message;
  TimePoint arrived = {};
};

/// One stream of a worker. Thread safe; no call blocks; calls after the listener's end do nothing.
class WorkerStream {
 public:
  virtual ~WorkerStream() = default;
  /// What its key proves.
  [[nodiscard]] virtual const stream::Member& member() const = 0;
  /// From here on it sends what `link` holds; nothing if that is nullptr.
  virtual void Bind(std::shared_ptr<SessionLink> link) = 0;
  /// The link holds something new.
  virtual void Kick() = 0;
  /// Read the next message: nothing is read between a message and this, so that who sends faster than it is
  /// heard is slowed down.
  virtual void Continue() = 0;
  /// Ends it once the link has nothing more to send.
  virtual void CloseWhenIdle(const Status& reason) = 0;
  /// Ends it at once.
  virtual void Abort() = 0;
};

/// Somebody who watches. Thread safe; no call blocks.
class ViewSink {
 public:
  virtual ~ViewSink() = default;
  /// Shown next, in place of an older one that has not gone out yet. A view, or the answer to a question.
  virtual void Show(SharedPacket view) = 0;
  /// Listen to what it asks next: nothing is read between a question and this.
  virtual void Continue() = 0;
};

/// Called from the network's threads; must not block.
struct ListenerHandlers {
  std::function<void(std::shared_ptr<WorkerStream>)> on_open;
  std::function<void(std::shared_ptr<WorkerStream>, Incoming)> on_message;
  std::function<void(std::shared_ptr<WorkerStream>, Status)> on_closed;  ///< Once for each that was opened.
  std::function<void(std::shared_ptr<ViewSink>)> on_watch;
  std::function<void(std::shared_ptr<ViewSink>, protocol::ObserverMessage)> on_ask;
  std::function<void(std::shared_ptr<ViewSink>)> on_unwatch;
};

struct ListenerOptions {
  std::string host;
  uint16_t port = 0;  ///< 0: any.
  stream::MasterToken master;
  Duration lease{};
  /// Streams at once, of which the last quarter is for workers. 0: three quarters of the descriptors that
  /// this process may open.
  size_t most_streams = 0;
  ListenerHandlers handlers;
};

/// Takes the streams of workers and observers who have a key of the job. Three threads: those of
/// StreamServer, and `wc-unpack`, which reads large messages.
class Listener {
 public:
  /// Errors: kUnavailable "port in use", kInvalidArgument for an address that is not of this host,
  /// kExhausted.
  static Result<std::unique_ptr<Listener>> Start(ListenerOptions options);
  virtual ~Listener() = default;
  [[nodiscard]] virtual uint16_t port() const = 0;
  /// Ends every stream; no handler runs afterwards. Bounded.
  virtual void Stop() = 0;
};

}  // namespace weightcast::control
