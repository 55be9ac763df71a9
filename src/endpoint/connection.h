#pragma once

#include <memory>
#include <string>

#include "endpoint/channel.h"
#include "endpoint/connection_view.h"
#include "endpoint/context.h"
#include "endpoint/handshake.h"
#include "endpoint/notices.h"
#include "endpoint/paths.h"
#include "endpoint/transfers/grants.h"
#include "endpoint/transfers/imports.h"
#include "endpoint/transfers/sender.h"
#include "weightcast/endpoint.h"

namespace weightcast {

namespace endpoint {
class Core;
/// A peer that has proven itself, with the channel on which it did.
struct Proven {
  transport::Role role{};  ///< Ours.
  Hello hello;
  std::string address;  ///< "10.0.0.1:4711", where it listens.
  Channel channel;
};
}  // namespace endpoint

/// One connection: control channel, choice of a transport, transfers, grants, liveness.
///
/// Life, all under progress: Start -> (Ready) -> End -> its links' LinkClosed. From End on nothing begins
/// any more; from the last LinkClosed on nothing can land any more, and the endpoint lets go of it.
class Connection::State : public std::enable_shared_from_this<State> {
 public:
  State(std::shared_ptr<endpoint::Core> core, const endpoint::Context& context, endpoint::Proven proven);

  // --- Any thread -----------------------------------------------------------------------------
  [[nodiscard]] const std::shared_ptr<endpoint::Core>& core() const { return core_; }
  /// These say themselves which of their calls are for any thread.
  [[nodiscard]] endpoint::ConnectionView& view() { return view_; }
  [[nodiscard]] endpoint::Imports& imports() { return imports_; }
  [[nodiscard]] endpoint::Grants& grants() { return grants_; }
  [[nodiscard]] endpoint::Notices& notices() { return notices_; }
  /// The link in use, set before `view` is ready, and constant from then on.
  struct Link {
    transport::Transport* transport = nullptr;
    transport::LinkId id{};
    uint64_t at_once = 0;         ///< A transfer up to this long begins on its caller's thread.
    uint64_t at_once_device = 0;  ///< The same for one with device memory.
  };
  [[nodiscard]] const Link& link() const { return link_; }
  [[nodiscard]] Status CheckUsable() const;

  // --- Holder of progress -----------------------------------------------------------------------
  /// In the endpoint's list of those that have something for the transports.
  bool listed = false;
  void Start();
  /// Ends it; the peer is told why. Only the first reason counts.
  void End(Status reason);
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] endpoint::Sender& sender() { return sender_; }
  /// Nothing once it has ended.
  void Send(const endpoint::Message& message);
  void On(const transport::Completion& event) { sender_.OnCompletion(event); }
  void On(const transport::SignalArrived& event);
  void On(const transport::LinkReady& event) { paths_.OnReady(event.link, event.lanes); }
  void On(const transport::LaneDown& event);
  void On(const transport::LaneUp& event);
  void On(const transport::LinkDown& event);
  void On(const transport::Revoked& event);
  void On(const transport::LinkClosed& event);

 private:
  void OnSocket();
  Status OnMessage(endpoint::Message message);
  void OnBeat();
  void OnChosen();

  const std::shared_ptr<endpoint::Core> core_;
  const endpoint::Context context_;
  const transport::Role role_;
  const Duration peer_lease_;

  endpoint::ConnectionView view_;
  endpoint::Imports imports_;
  endpoint::Grants grants_;
  endpoint::Notices notices_;

  // Holder of progress.
  endpoint::Channel channel_;
  endpoint::Paths paths_;
  endpoint::Sender sender_;
  uint64_t socket_key_ = 0;
  endpoint::TimerId beat_;
  endpoint::TimerId choice_limit_;
  endpoint::TimerId grace_;
  TimePoint next_beat_{};
  bool ended_ = false;
  Link link_;
};

}  // namespace weightcast
