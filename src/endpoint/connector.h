#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/socket.h"
#include "endpoint/connections.h"
#include "endpoint/transfers/flag.h"

namespace weightcast::endpoint {

class Handshakes;

/// One caller inside Endpoint::Connect. The first block is fixed; `connection` or `status` are set before
/// `done`; the rest belongs to the holder of progress.
struct ConnectCall {
  std::vector<SocketAddress> addresses;
  Identity expected;
  std::string key;  ///< Of the pair; empty: the endpoint's own for all.
  TimePoint deadline;

  Flag done;
  Status status;
  std::shared_ptr<Connection::State> connection;

  enum class Stage {
    kConnecting,  ///< Own attempts run.
    kWaiting,     ///< For a connection to `target` that is being made, whichever side began it.
    kOver,
  };
  Stage stage = Stage::kConnecting;
  Incarnation target = 0;  ///< As expected, or learned; 0: unknown.
  size_t next = 0;         ///< Address to try next.
  uint32_t running = 0;    ///< Attempts.
  uint32_t lost = 0;       ///< Connections that ended before they were ready.
  std::vector<std::string> errors;
  Code worst = Code::kUnavailable;
  bool dropped = false;  ///< A peer took a connection and closed it in the middle of the handshake.
  TimerId again;         ///< The next address, or the next try.
  TimerId limit;
};

/// Serves callers in Endpoint::Connect: addresses, staggering, retries.
class Connector {
 public:
  using Call = std::shared_ptr<ConnectCall>;
  using ConnectionState = Connections::ConnectionState;

  Connector(const Context& context, const Connections& connections, Handshakes& handshakes)
      : context_(context), connections_(connections), handshakes_(handshakes) {}

  /// Any thread.
  Result<ConnectionState> Connect(const std::vector<std::string>& addresses, const Identity& expected,
                                  TimePoint deadline, std::string key);

  // --- Holder of progress -----------------------------------------------------------------------
  /// All calls end as kCancelled, also those that come later.
  void Stop();
  /// The call that connects to this peer by attempts of its own.
  [[nodiscard]] Call OwnCallTo(Incarnation peer) const;
  /// From now on it waits for a connection to `target` that is being made, and makes none.
  void WaitFor(const Call& call, Incarnation target);
  void Resolve(const Call& call, Status status, const ConnectionState& connection);
  /// One of its attempts has failed and is gone.
  void OnAttemptFailed(const Call& call, const SocketAddress& address, const Status& reason);
  /// One that this peer began has failed, after the peer had proven itself.
  void OnIncomingFailed(Incarnation peer);
  void OnReady(const ConnectionState& connection);
  /// A connection that had not become ready has ended.
  void OnLost(Incarnation peer, const Status& reason);

 private:
  void Begin(const Call& call);
  /// The caller's time is over.
  void GiveUp(const Call& call);
  void StartConnecting(const Call& call);
  void TryNext(const Call& call);
  static void AddError(ConnectCall& call, const SocketAddress& address, const Status& status);
  void FailConnecting(const Call& call);
  void Reconsider(const Call& call);

  const Context context_;
  const Connections& connections_;
  Handshakes& handshakes_;
  bool stopped_ = false;
  std::list<Call> calls_;
};

}  // namespace weightcast::endpoint
