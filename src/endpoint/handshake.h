#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "endpoint/message.h"
#include "transport/types.h"
#include "weightcast/clock.h"
#include "weightcast/identity.h"
#include "weightcast/status.h"

namespace weightcast::endpoint {

/// What an endpoint says of itself before anything is proven.
struct Hello {
  uint16_t version = kProtocolVersion;
  uint16_t port = 0;  ///< Where it listens: a label.
  Identity identity;
  std::string boot_id;  ///< A hint for messages to people.
  uint64_t chunk = 0;   ///< Bytes of its chunks.
  Duration lease{};     ///< Who is silent for this long is dead to it.
  std::array<std::byte, 32> nonce{};
};
std::string EncodeHello(const Hello& hello);
/// kProtocol: not weightcast, another version (both are named), or malformed.
Result<Hello> ParseHello(std::string_view payload);

/// Whom a caller wants to reach: an empty role is anyone of the job, incarnation 0 any of that rank.
bool Matches(const Identity& expected, const Identity& actual);

/// What both sides of a handshake must have; it never crosses the wire.
struct Key {
  enum class Of : uint8_t { kJob, kPair };
  Of of = Of::kJob;  ///< For messages to people.
  std::string bytes;
};
/// The key for a peer that claims to be this.
using FindKey = std::function<Key(const Identity& peer)>;

/// One side of one handshake, without sockets or clocks: messages in, messages out.
///
///     kGreeting -> kProving -> kProven -> (Accept and the peer's verdict) -> kAccepted
///          \__________\___________\_______________> kFailed
class Handshaker {
 public:
  enum class State { kGreeting, kProving, kProven, kAccepted, kFailed };

  /// `expected`: the initiator's; the responder takes any.
  Handshaker(transport::Role role, Hello mine, FindKey find_key, Identity expected = {});

  /// The initiator's first message.
  [[nodiscard]] Message Start() const;
  /// What to send in answer, in this order; also when it failed, so that the peer learns why.
  std::vector<Message> OnMessage(const Message& message);
  /// kProven: our verdict. An initiator gives it only after the peer's.
  Message Accept();
  /// kProven: refuses the peer; fails with `reason`.
  Message Refuse(Status reason);

  [[nodiscard]] State state() const { return state_; }
  /// The peer's verdict is there and good.
  [[nodiscard]] bool peer_accepted() const { return peer_accepted_; }
  /// Why it failed.
  [[nodiscard]] const Status& failure() const { return failure_; }
  /// kCancelled from the peer: it keeps the connection that it opened itself.
  [[nodiscard]] bool superseded() const { return superseded_; }
  /// Valid once the peer's hello has come (state beyond kGreeting, or failed after it).
  [[nodiscard]] const std::optional<Hello>& peer() const { return peer_; }

 private:
  std::vector<Message> OnHello(const Message& message);
  std::vector<Message> OnProof(const Message& message);
  std::vector<Message> OnVerdict(const Message& message);
  Status CheckPeer() const;
  [[nodiscard]] Digest ProofOf(transport::Role role) const;
  [[nodiscard]] Message MyProof() const;
  std::vector<Message> Fail(Status reason);

  transport::Role role_;
  Hello mine_;
  FindKey find_key_;
  Key key_;  ///< Found once the peer has said who it is.
  Identity expected_;
  State state_ = State::kGreeting;
  std::optional<Hello> peer_;
  std::string my_hello_;
  std::string peer_hello_;
  bool accepted_ = false;
  bool peer_accepted_ = false;
  bool superseded_ = false;
  Status failure_;
};

}  // namespace weightcast::endpoint
