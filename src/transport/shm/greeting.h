#pragma once

#include <memory>
#include <optional>
#include <string>

#include "transport/shm/link_parts.h"
#include "transport/shm/messages.h"
#include "weightcast/clock.h"

namespace weightcast::transport::shm {

/// A link from the blobs until it is ready. Both sides do the same once they are connected: greet with the
/// descriptors of what they share, try the peer's memory, look whether the peer's trial arrived.
class Greeting {
 public:
  explicit Greeting(LinkParts& link)
      : link_(link), cookie_(NewCookie()), cell_(std::make_unique<TrialCell>()) {}

  /// What the peer must present.
  [[nodiscard]] const Cookie& cookie() const { return cookie_; }
  /// Responder: the offer's.
  void set_peer_cookie(const Cookie& cookie) { peer_cookie_ = cookie; }
  [[nodiscard]] bool awaits_guest() const {
    return link_.state == LinkParts::State::kOpening && !link_.channel.valid() && peer_cookie_ != Cookie{};
  }
  /// Initiator: connects and greets. Goes on with Step where the peer's listener is full.
  Status Connect(const Invitation& answer);
  Status Step(TimePoint now);
  /// When Step has something to do.
  [[nodiscard]] std::optional<TimePoint> due() const {
    return peer_listener_.empty() ? std::nullopt : std::optional(retry_at_);
  }
  /// Responder: the peer has connected and greeted with our cookie, which came in `offer`'s answer.
  Status Adopt(Channel channel, const Channel::Incoming& hello);

  /// Whether a message of this kind is its next.
  [[nodiscard]] bool Awaits(MessageKind kind) const;
  Status OnMessage(MessageKind kind, const Channel::Incoming& message);
  /// Both sides have seen what the other has tried.
  [[nodiscard]] bool done() const { return verdict_sent_ && verdict_seen_; }

 private:
  Status Watch(Channel channel);
  Status Greet();
  Status IdentifyProcess();
  Status OnHello(const Channel::Incoming& message);
  Status OnTrial(const Trial& trial);
  Status OnVerdict(const Verdict& verdict);

  LinkParts& link_;
  Cookie cookie_;
  Cookie peer_cookie_{};
  std::string peer_listener_;  ///< Set: connecting.
  TimePoint retry_at_{};
  std::unique_ptr<TrialCell> cell_;
  bool verdict_sent_ = false;
  bool verdict_seen_ = false;
};

}  // namespace weightcast::transport::shm
