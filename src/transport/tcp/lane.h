#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "transport/tcp/arrivals.h"
#include "transport/tcp/inbox.h"
#include "transport/tcp/link_shared.h"
#include "transport/tcp/outbox.h"
#include "transport/tcp/own_operations.h"
#include "transport/tcp/peer_operations.h"
#include "transport/tcp/replies.h"
#include "transport/tcp/send_stage.h"

namespace weightcast::transport::tcp {

/// One started socket of a link: the peer's operations carried out and ours sent. Once it fails it stays
/// closed; it has then said LaneDown, and its operations wait to be failed.
class Lane final {
 public:
  Lane(const LinkShared& shared, LaneOwner& owner, uint32_t index, UniqueFd socket);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane();
  /// From here on the poller tells when there is something to receive.
  Status Watch();

  [[nodiscard]] bool open() const { return socket_.valid(); }
  /// No copy between device memory and this lane's blocks is under way. A lane that has hung up becomes so
  /// and stays so.
  [[nodiscard]] bool quiet() const { return arrivals_.stage().empty() && send_stage_.quiet(); }
  /// "10.0.0.1:4711 to 10.0.0.2:4712"
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Why it is down, for a person.
  [[nodiscard]] const std::string& reason() const { return reason_; }
  /// Goes on with what was left: input that found no room among the events or blocks, output that found none
  /// in the socket, a source whose event was not over, copies.
  void Continue();
  /// Before sleeping. False: there is something to do now. Else the poller will tell, also when a full
  /// socket takes more.
  bool Arm();

  /// Flush sends what was pushed there. To be failed once quiet(), when the peer has hung up as well or
  /// nobody asks any more.
  [[nodiscard]] OwnOperations& operations() { return operations_; }
  /// Flush sends what was said there.
  [[nodiscard]] Replies& replies() { return replies_; }
  void Flush();
  /// Receives a bounded amount, then sends what became due.
  void Receive();
  /// The same without having been told that something is there. False: it has other things to do first.
  bool LookForMore();

  /// Nothing of this grant lands from here on.
  void Fence(const GrantName& grant);
  /// No byte of this region is written or read for the peer from here on.
  void Forget(const LocalRegion& region);
  /// Closes the socket and says LaneDown: nothing lands here through it any more.
  void HangUp(Status reason);
  /// Closes the socket, without LaneDown.
  void Close();

 private:
  [[nodiscard]] Status Broken(int error) const;
  void Fail(Status reason);
  /// The peer broke the protocol.
  void Break(std::string_view violation);
  bool WatchFor(uint32_t events);
  void TakeWaiting();
  /// To be called after every change of what Continue goes on with.
  void CountWanting();
  void OnDiverted();

  const LinkShared& shared_;
  LaneOwner& owner_;
  uint32_t index_;
  UniqueFd socket_;
  std::string peer_;  ///< For messages.
  std::string path_;
  std::string reason_;
  SendStage send_stage_;
  OwnOperations operations_;
  Replies replies_;
  Outbox outbox_;
  Inbox inbox_;
  PeerOperations peers_;
  Arrivals arrivals_;
  bool has_input_ = false;
  bool stalled_ = false;  ///< The payload that comes finds no block.
  bool blocked_ = false;
  uint32_t watched_ = 0;  ///< What the poller tells.
  bool wanting_ = false;  ///< Counted in Shared::wanting.
  int send_error_ = 0;    ///< errno of a send that failed; the lane ends once all is received.
};

}  // namespace weightcast::transport::tcp
