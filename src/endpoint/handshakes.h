#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "base/half_open.h"
#include "base/log.h"
#include "base/socket.h"
#include "endpoint/channel.h"
#include "endpoint/connections.h"
#include "endpoint/connector.h"
#include "endpoint/handshake.h"
#include "endpoint/lingering.h"

namespace weightcast::endpoint {

/// The handshakes that are under way: those that peers begin at our listener and those that our callers
/// begin. Decides which connection is kept when both begin at once (docs/wire.md). Belongs to the holder of
/// progress.
class Handshakes {
 public:
  /// `hello`: what we say of ourselves, but for the nonce. `proven` takes a peer that is let in.
  Handshakes(const Context& context, Hello hello, const Connections& connections,
             LingeringChannels& lingering, FindKey find_key, std::function<void(Proven)> proven)
      : context_(context),
        hello_(std::move(hello)),
        connections_(connections),
        lingering_(lingering),
        find_key_(std::move(find_key)),
        proven_(std::move(proven)),
        connector_(context, connections, *this) {}

  [[nodiscard]] Connector& connector() { return connector_; }
  /// Ends everything.
  void Stop();

  /// A peer has connected.
  void Accept(UniqueFd fd);
  /// Closes one that has proven nothing, and logs `why`. False: there is none.
  bool MakeRoom(std::string_view why);

  /// An attempt for a caller.
  Status Start(const Connector::Call& call, const SocketAddress& address);
  void Drop(const Connector::Call& call);
  /// What becomes of a peer's attempt that is held.
  void ReleaseHeld(Incarnation peer, bool superseded);
  /// A connection with this peer is there, or may come of what the peer has begun.
  [[nodiscard]] bool BeingMade(Incarnation peer);

 private:
  using Call = Connector::Call;
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
    Stage stage = Stage::kTalking;
    Channel channel;
    Handshaker machine;
    SocketAddress address;
    uint64_t key = 0;
    TimerId limit{};
    Call call{};  ///< Of an initiator.
  };

  Attempt& NewAttempt(transport::Role role, UniqueFd fd, const SocketAddress& address, const Call& call);
  Status Watch(Attempt& attempt, uint32_t events);
  void OnSocket(uint64_t id, uint32_t events);
  void Read(uint64_t id);
  void React(Attempt& attempt);
  void Decide(Attempt& attempt);
  void AskAdmit(Attempt& attempt);
  void OnAdmit(uint64_t id, const Status& status);
  void Settle(Attempt& attempt);
  void Establish(Attempt& attempt);
  void Send(Attempt& attempt, const Message& message);
  void Refuse(Attempt& attempt, const Status& reason);
  void Fail(Attempt& attempt, Status reason);
  void Erase(Attempt& attempt, bool linger);
  Attempt* Find(uint64_t id);
  Attempt* FindIncoming(Incarnation peer);
  void LogRefusal(const Attempt& attempt, const Status& reason);

  const Context context_;
  const Hello hello_;
  const Connections& connections_;
  LingeringChannels& lingering_;
  const FindKey find_key_;
  const std::function<void(Proven)> proven_;
  Connector connector_;
  std::map<uint64_t, Attempt> attempts_;
  uint64_t last_attempt_ = 0;
  HalfOpen half_open_;  ///< Peers at our listener that have not proven themselves.
  OncePerSecond warning_;
  OncePerSecond detail_;
};

}  // namespace weightcast::endpoint
