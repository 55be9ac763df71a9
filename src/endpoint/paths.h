#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "endpoint/message.h"
#include "transport/transport.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::endpoint {

/// A transport that this endpoint may use, best first.
struct NamedTransport {
  std::string name;
  transport::Transport* transport = nullptr;
  std::string why_not{};  ///< Why a new connection does not use it, if it does not.
};

/// Chooses one connection's transport: opens all that both sides allow, takes the best that is ready on
/// both, closes the others. Belongs to the holder of progress.
class Paths {
 public:
  struct Hooks {
    /// A new link's id; the events of the link are to be handed to us.
    std::function<transport::LinkId(transport::Transport*)> add_link;
    /// Ends a link.
    std::function<void(transport::LinkId)> close_link;
    /// Takes back an id whose link could not be opened.
    std::function<void(transport::LinkId)> drop_link;
    std::function<void(const Message&)> send;
    /// Called once.
    std::function<void()> chosen;
    /// Called once, instead: no transport serves this peer.
    std::function<void(Status)> failed;
  };
  struct Peer {
    Incarnation incarnation = 0;
    std::string label;
    bool same_kernel = false;  ///< Its boot id is ours: a hint that all transports might work.
  };
  struct Path {
    enum class State { kOpening, kReady, kDown };
    std::string name;
    transport::Transport* transport = nullptr;
    transport::LinkId link{};
    bool open = false;  ///< Has a link that has to be closed.
    State here = State::kOpening;
    State there = State::kOpening;
    std::string reason{};  ///< Why it is down.
    uint32_t lanes = 0;
    std::map<uint32_t, Status> lanes_down{};  ///< Failed before the choice, and why.
    /// Responder: it has failed after it was ready. Still open, because the initiator may have chosen it.
    Status lost{};
  };

  Paths(transport::Role role, std::vector<NamedTransport> allowed, Peer peer, Hooks hooks);

  /// Initiator: opens and offers all. `deadline`: for a transport to become ready.
  void Open(TimePoint deadline);
  /// The deadline has passed: what is not ready counts as down.
  void GiveUp();
  /// Closes all links.
  void Close();

  // The peer's messages. kProtocol: they do not fit.
  Status OnOffers(std::string_view payload, TimePoint deadline);
  Status OnAnswers(std::string_view payload);
  Status OnPath(std::string_view payload);
  Status OnChosen(std::string_view payload);

  // Events of links that were added here.
  void OnReady(transport::LinkId link, uint32_t lanes);
  void OnDown(transport::LinkId link, const Status& reason);
  void OnLaneDown(transport::LinkId link, uint32_t lane, const Status& reason);
  void OnLaneUp(transport::LinkId link, uint32_t lane);

  /// The path in use; null until chosen.
  [[nodiscard]] const Path* chosen() const { return chosen_ < 0 ? nullptr : &paths_[chosen_]; }

 private:
  enum class Stage { kNew, kOffered, kAnswered, kChosen, kOver };
  Path* Find(transport::LinkId link);
  Result<std::string> OpenLink(Path& path, std::string_view offer, TimePoint deadline);
  PathOffer Answer(Path& path, const PathOffer& offer, TimePoint deadline);
  void SetDown(Path& path, std::string reason);
  void Report(const Path& path, bool ready);
  void Evaluate();
  void Choose(size_t index);
  void WarnOfFallback() const;
  void Fail();
  void ClosePath(Path& path);

  transport::Role role_;
  std::vector<NamedTransport> allowed_;
  Peer peer_;
  Hooks hooks_;
  Stage stage_ = Stage::kNew;
  std::vector<Path> paths_;  ///< In the initiator's order.
  int chosen_ = -1;
};

}  // namespace weightcast::endpoint
