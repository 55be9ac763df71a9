#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/half_open.h"
#include "base/log.h"
#include "base/socket.h"
#include "endpoint/channel.h"
#include "endpoint/connection.h"
#include "endpoint/flag.h"
#include "endpoint/handshake.h"
#include "endpoint/handshake_listener.h"
#include "endpoint/timers.h"

namespace weightcast::endpoint {

class Core;

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
    kWaiting,     ///< For a connection to `target` that is being made, whoever began it.
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

/// Handshakes: those that peers begin at our listener and those that our callers begin. Decides which
/// connection lives when both begin at once (docs/wire.md). Belongs to the holder of progress.
class ConnectionManager {
 public:
  ConnectionManager(Core& core, HandshakeListener listener) : core_(core), listener_(std::move(listener)) {}

  /// Listens from now on.
  Status Start();
  /// Ends everything; calls end as kCancelled.
  void Stop();
  [[nodiscard]] const std::vector<std::string>& addresses() const { return listener_.addresses; }

  void Connect(std::shared_ptr<ConnectCall> call);
  /// The caller no longer waits: its time is over, or it was interrupted.
  void GiveUp(const std::shared_ptr<ConnectCall>& call);
  void Interrupt(const std::shared_ptr<ConnectCall>& call);

  void OnConnectionReady(const std::shared_ptr<Connection::State>& connection);
  /// One that had not become ready.
  void OnConnectionLost(Incarnation peer, const Status& reason);

 private:
  using Call = std::shared_ptr<ConnectCall>;
  struct Attempt {
    enum class Stage {
      kConnecting,
      kTalking,
      kHeld,      ///< A peer's, kept until our own has succeeded or failed.
      kDeciding,  ///< admit has been asked.
      kAdmitted,
    };
    uint64_t id = 0;
    transport::Role role{};
    TimePoint begun{};
    Stage stage = Stage::kTalking;
    Channel channel;
    Handshaker machine;
    SocketAddress address;
    uint64_t key = 0;
    TimerId limit{};
    Call call{};  ///< Of an initiator.
  };
  using Attempts = std::map<uint64_t, Attempt>;

  // Outgoing.
  void StartConnecting(const Call& call);
  void TryNext(const Call& call);
  Status StartAttempt(const Call& call, const SocketAddress& address);
  void OnConnectable(Attempt& attempt);
  void AddError(ConnectCall& call, const SocketAddress& address, const Status& status) const;
  void Reconsider(const Call& call);
  void WaitFor(const Call& call, Incarnation target);
  void DropAttempts(const Call& call);
  void Resolve(const Call& call, Status status, const std::shared_ptr<Connection::State>& connection);
  void FailConnecting(const Call& call);

  // Incoming.
  void OnAcceptable();
  void Admit(UniqueFd fd);
  void PauseAccepting();
  void SendAway(Attempt& attempt);

  // Both.
  Attempt& NewAttempt(transport::Role role, UniqueFd fd, const SocketAddress& address, const Call& call);
  Status WatchAttempt(Attempt& attempt, uint32_t events);
  void OnSocket(uint64_t id, uint32_t events);
  void Read(uint64_t id);
  void React(Attempt& attempt);
  void Decide(Attempt& attempt);
  void AskAdmit(Attempt& attempt);
  void OnAdmit(uint64_t id, const Status& status);
  void Settle(Attempt& attempt);
  void Establish(Attempt& attempt);
  void ReleaseHeld(Incarnation peer, bool superseded);
  void Send(Attempt& attempt, const Message& message);
  void Refuse(Attempt& attempt, const Status& reason);
  void FailAttempt(Attempt& attempt, const Status& reason);
  void Erase(Attempt& attempt, bool linger);
  Attempt* Find(uint64_t id);
  Attempt* FindIncoming(Incarnation peer);
  Call OwnCallTo(Incarnation peer) const;
  void LogRefusal(const Attempt& attempt, const Status& reason);

  Core& core_;
  HandshakeListener listener_;
  uint64_t listener_key_ = 0;
  TimerId accept_pause_;
  OncePerSecond accept_complaint_;
  bool stopped_ = false;
  Attempts attempts_;
  uint64_t last_attempt_ = 0;
  std::list<Call> calls_;
  HalfOpen half_open_;  ///< Peers at our listener that have not proven themselves.
  OncePerSecond warning_;
  OncePerSecond detail_;
};

}  // namespace weightcast::endpoint
