#include "transport/tcp/lane.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"
#include "transport/tcp/keys.h"

namespace weightcast::transport::tcp {
namespace {

/// Received from one lane before others have their turn.
constexpr size_t kReceiveBudget = 1U << 20;

std::string TextOf(const Result<SocketAddress>& address) { return address.ok() ? address->ToString() : "?"; }

}  // namespace

Lane::Lane(const LinkShared& shared, LaneOwner& owner, uint32_t index, UniqueFd socket)
    : shared_(shared),
      owner_(owner),
      index_(index),
      socket_(std::move(socket)),
      peer_(TextOf(PeerAddressOf(socket_.get()))),
      path_(StrCat(TextOf(LocalAddressOf(socket_.get())), " to ", peer_)),
      send_stage_(shared.copiers, shared.regions),
      operations_(shared, send_stage_),
      replies_(shared.terms.depth, send_stage_),
      outbox_(operations_, replies_, send_stage_),
      peers_(shared, replies_),
      arrivals_(shared, owner, index, inbox_, operations_, peers_) {}

Lane::~Lane() { Close(); }

// Socket buffers are left to the kernel's tuning. Measured over loopback, 1 MiB writes, two cores, medians
// of 7: tuned 5.8 GB/s; fixed at 64 KiB 5.0, 128 KiB 4.8, 256 KiB 3.8, 1 MiB 5.6, 4 MiB 5.5. A fixed size
// would also cap a long or fast network at size / round trip.
Status Lane::Watch() {
  watched_ = EPOLLIN;
  return shared_.poller.Add(socket_.get(), watched_, MakeKey(KeyKind::kLane, shared_.terms.id, index_));
}

bool Lane::WatchFor(uint32_t events) {
  if (events == watched_) return true;
  const Status status =
      shared_.poller.Modify(socket_.get(), events, MakeKey(KeyKind::kLane, shared_.terms.id, index_));
  if (status.ok()) watched_ = events;
  return status.ok();
}

void Lane::Continue() {
  ReceiveStage& stage = arrivals_.stage();
  send_stage_.Advance();
  if (open() && stage.MustYield()) stage.Yield();
  if (stage.Advance()) shared_.moved = true;
  if (open()) TakeWaiting();
  if (!open()) return CountWanting();
  if (!wanting_) return;
  if (has_input_ || stalled_) {
    Receive();
  } else {
    Flush();
  }
}

void Lane::TakeWaiting() {
  bool any = false;
  if (const auto violation = arrivals_.TakeWaiting(any); !violation.empty()) return Break(violation);
  if (any) Flush();
}

bool Lane::Arm() {
  if (!wanting_ || !open()) return true;
  if (has_input_ || operations_.waits_for_event() || send_stage_.CanGoOn()) return false;
  if (stalled_ && !arrivals_.stage().Room().empty()) return false;
  if (arrivals_.stage().MustYield()) return false;
  return WatchFor((stalled_ ? 0U : EPOLLIN) | (blocked_ ? EPOLLOUT : 0U));
}

void Lane::CountWanting() {
  const bool moves =
      has_input_ || stalled_ || blocked_ || operations_.waits_for_event() || send_stage_.waits();
  const bool wanting = (open() && (moves || !arrivals_.empty())) || !quiet();
  if (wanting == wanting_) return;
  wanting_ = wanting;
  wanting ? ++shared_.wanting : --shared_.wanting;
}

void Lane::Close() {
  if (!open()) return;
  shared_.poller.Remove(socket_.get());
  // A forked child may hold the socket too: closing our copy alone would tell the peer nothing.
  shutdown(socket_.get(), SHUT_RDWR);
  socket_.reset();
  has_input_ = stalled_ = blocked_ = false;
  // What waits for its copies is forgotten: the peer will be told that it may be written, and sends it again.
  arrivals_.stage().Abandon();
  send_stage_.Abandon();
  CountWanting();
}

void Lane::Flush() {
  if (!open() || send_error_ != 0) return;
  const auto outcome = outbox_.Flush(socket_.get(), shared_.moved);
  const int error = errno;
  blocked_ = outcome == SendBatch::Outcome::kBlocked;
  if (!blocked_ && (watched_ & EPOLLOUT) != 0) WatchFor(watched_ & ~EPOLLOUT);
  if (outcome == SendBatch::Outcome::kFailed) {
    // The socket may still hold the peer's last answers: Receive takes them before the lane ends.
    send_error_ = error;
    has_input_ = true;
  }
  CountWanting();
}

void Lane::Receive() {
  if (!open()) return;
  if (stalled_ && arrivals_.stage().Room().empty()) return Flush();
  stalled_ = false;
  if ((watched_ & EPOLLIN) == 0) WatchFor(watched_ | EPOLLIN);
  shared_.moved = true;
  const auto outcome = inbox_.Receive(socket_.get(), kReceiveBudget, arrivals_);
  const int error = errno;
  has_input_ = outcome == Inbox::Outcome::kMore;
  stalled_ = outcome == Inbox::Outcome::kStalled;
  switch (outcome) {
    case Inbox::Outcome::kEmpty:
      if (send_error_ != 0) return Fail(Broken(send_error_));
      return Flush();
    case Inbox::Outcome::kMore:
    case Inbox::Outcome::kStalled:
      Flush();
      return CountWanting();
    case Inbox::Outcome::kClosed:
      return Fail(Error(Code::kUnavailable, "the peer at ", peer_, " closed its connection; see its log"));
    case Inbox::Outcome::kFailed:
      return Fail(Broken(error));
    case Inbox::Outcome::kViolation:
      return Break(inbox_.violation());
  }
}

bool Lane::LookForMore() {
  if (!open() || wanting_) return false;
  const bool moved = shared_.moved;
  const uint64_t before = inbox_.received();
  Receive();
  if (open() && inbox_.received() == before) shared_.moved = moved;
  return true;
}

Status Lane::Broken(int error) const {
  return Error(Code::kUnavailable, "the connection to ", peer_, " broke: ", ErrnoText(error),
               "; check the network, and whether the peer runs");
}

void Lane::Break(std::string_view violation) {
  Fail(Error(Code::kProtocol, "the peer at ", peer_, kBrokeProtocol, violation, kSameRelease));
}

void Lane::Fail(Status reason) {
  if (reason.code() == Code::kProtocol) WC_LOG(kError, "tcp: ", reason.message());
  HangUp(std::move(reason));
}

void Lane::HangUp(Status reason) {
  reason_ = reason.message();
  Close();
  shared_.events.Push(LaneDown{shared_.terms.id, index_, std::move(reason)});
  owner_.OnHungUp();
}

void Lane::Fence(const GrantName& grant) {
  if (arrivals_.Fence(grant)) OnDiverted();
}

void Lane::Forget(const LocalRegion& region) {
  outbox_.Forget(region);
  if (arrivals_.Forget(region)) OnDiverted();
}

/// What was being received waits for no block any more.
void Lane::OnDiverted() {
  has_input_ |= std::exchange(stalled_, false);
  CountWanting();
}

}  // namespace weightcast::transport::tcp
