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

constexpr std::string_view kTooMany = "it has more operations in flight than were agreed on";

}  // namespace

Lane::Lane(const LaneShared& shared, Owner& owner, const GrantTable& grants, LinkId link, uint32_t index,
           uint32_t depth, UniqueFd socket, std::string peer)
    : shared_(shared),
      owner_(owner),
      grants_(grants),
      link_(link),
      index_(index),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      outbox_(link, depth, shared.events, shared.regions, *shared.copiers),
      depth_(depth) {}

Lane::~Lane() { Hang(); }

// Socket buffers are left to the kernel's tuning. Measured over loopback, 1 MiB writes, two cores, medians
// of 7: tuned 5.8 GB/s; fixed at 64 KiB 5.0, 128 KiB 4.8, 256 KiB 3.8, 1 MiB 5.6, 4 MiB 5.5. A fixed size
// would also cap a long or fast network at size / round trip.
Status Lane::Watch() {
  watched_ = EPOLLIN;
  return shared_.poller.Add(socket_.get(), watched_, MakeKey(KeyKind::kLane, link_, index_));
}

bool Lane::WatchFor(uint32_t events) {
  if (events == watched_) return true;
  const Status status = shared_.poller.Modify(socket_.get(), events, MakeKey(KeyKind::kLane, link_, index_));
  if (status.ok()) watched_ = events;
  return status.ok();
}

void Lane::Continue() {
  AdvanceCopies();
  if (!open()) return CountWanting();
  if (!wanting_) return;
  if (has_input_ || stalled_) {
    Receive();
  } else {
    Flush();
  }
}

bool Lane::Arm() {
  if (!wanting_ || !open()) return true;
  if (has_input_ || outbox_.waits_for_event() || outbox_.CanGoOn()) return false;
  if (stalled_ && !stage_->Room().empty()) return false;
  if (stage_ != nullptr && stage_->MustYield()) return false;
  return WatchFor((stalled_ ? 0U : EPOLLIN) | (blocked_ ? EPOLLOUT : 0U));
}

void Lane::CountWanting() {
  const bool moves =
      has_input_ || stalled_ || blocked_ || outbox_.waits_for_event() || outbox_.waits_for_copy();
  const bool lands = arrivals_ != nullptr && !arrivals_->empty();
  const bool wanting = (open() && (moves || lands)) || !quiet();
  if (wanting == wanting_) return;
  wanting_ = wanting;
  wanting ? ++shared_.wanting : --shared_.wanting;
}

void Lane::Hang() {
  if (!open()) return;
  shared_.poller.Remove(socket_.get());
  // A forked child may hold the socket too: closing our copy alone would tell the peer nothing.
  shutdown(socket_.get(), SHUT_RDWR);
  socket_.reset();
  has_input_ = stalled_ = blocked_ = false;
  // What waits for its copies is forgotten: the peer will be told that it may be written, and sends it again.
  if (stage_ != nullptr) stage_->Abandon();
  outbox_.Abandon();
  CountWanting();
}

Code Lane::Push(Op op, Code code, LocalRegion* local, const ImportedRegion& remote) {
  if (op.kind != OpKind::kRead && op.grant.slot < kGrantSlots) {
    bool& first = own_first_[op.grant.slot];
    first |= op.first;
    if (op.first) own_refusals_.Begin(op.grant);
    const bool signal = op.has_signal || op.kind == OpKind::kSignal;
    const Code earlier = signal ? own_refusals_.End(op.grant) : Code::kOk;
    if (code == Code::kOk) code = earlier;
    if (code == Code::kOk) {
      op.first = std::exchange(first, false);
    } else if (signal) {
      first = true;
    } else {
      own_refusals_.Note(op.grant, code);
    }
  }
  if (code == Code::kOk) outbox_.Push(op, local, remote);
  return code;
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
  if (stalled_ && stage_->Room().empty()) return Flush();
  stalled_ = false;
  if ((watched_ & EPOLLIN) == 0) WatchFor(watched_ | EPOLLIN);
  shared_.moved = true;
  const auto outcome = inbox_.Receive(socket_.get(), kReceiveBudget, *this);
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
      return Fail({Code::kUnavailable, StrCat("the peer at ", peer_, " closed its connection; see its log")});
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
  return {Code::kUnavailable, StrCat("the connection to ", peer_, " broke: ", ErrnoText(error),
                                     "; check the network, and whether the peer runs")};
}

void Lane::Break(std::string_view violation) {
  Fail({Code::kProtocol, StrCat("the peer at ", peer_, kBrokeProtocol, violation, kSameRelease)});
}

void Lane::Fail(Status reason) {
  if (reason.code() == Code::kProtocol) WC_LOG(kError, "tcp: ", reason.message());
  HangUp(std::move(reason));
}

void Lane::HangUp(Status reason) {
  reason_ = reason.message();
  Hang();
  shared_.events.Push(LaneDown{link_, index_, std::move(reason)});
  owner_.OnHungUp();
}

void Lane::Close() { Hang(); }

Verdict Lane::OnFrame(const Frame& frame) {
  const bool operation =
      frame.type == FrameType::kWrite || frame.type == FrameType::kSignal || frame.type == FrameType::kRead;
  if (operation && frame.sequence != next_sequence_++)
    return {.violation = "it sent an operation out of order"};
  switch (frame.type) {
    case FrameType::kWrite:
      return OnWrite(frame);
    case FrameType::kSignal:
      return {.violation = MustQueue() ? Queue(frame, Code::kOk) : OnSignal(frame)};
    case FrameType::kRead:
      return {.violation = MustQueue() ? Queue(frame, Code::kOk) : OnRead(frame)};
    case FrameType::kAck:
      return {.violation = outbox_.OnAck(frame.sequence)};
    case FrameType::kResult:
      if (MustQueue() && outbox_.IsRead(frame.sequence)) return {.violation = Queue(frame, Code::kOk)};
      return {.violation = outbox_.OnResult(frame)};
    case FrameType::kLaneOver:
      return {.violation = owner_.OnLaneOver(index_, frame)};
    case FrameType::kData:
      return OnData(frame);
  }
  return {.violation = "an unknown frame type"};
}

std::string_view Lane::OnPayload(const Frame& frame) {
  if (stage_ != nullptr) stage_->End();
  if (frame.type == FrameType::kWrite) return EndWrite(frame);
  outbox_.OnData(frame.sequence, frame.length);
  return "";
}

Code Lane::Judge(const Frame& frame, const LocalRegion* region) const {
  if (region == nullptr) return Code::kPermission;
  if (region->access != Access::kReadWrite && region->access != Access::kGranted) return Code::kPermission;
  if (GrantTable::IsStanding(frame.grant) && region->access != Access::kReadWrite) return Code::kPermission;
  if (!InBounds(frame.offset, frame.length, region->length)) return Code::kOutOfBounds;
  if (!grants_.IsOpen(frame.grant)) return Code::kFenced;
  return grants_.Covers(frame.grant, frame.region, frame.generation, frame.offset, frame.length)
             ? Code::kOk
             : Code::kPermission;
}

Verdict Lane::OnWrite(const Frame& frame) {
  LocalRegion* const region = shared_.regions.Find(frame.region, frame.generation);
  write_code_ = Judge(frame, region);
  write_region_ = write_code_ == Code::kOk ? region : nullptr;
  if (write_region_ == nullptr) return {};
  if (region->device == nullptr) return {.place = region->base + frame.offset};
  ReceiveStage& stage = StageFor(*region);
  stage.Begin(*region, frame.offset, frame.grant, ReceiveStage::For::kPeersWrite);
  return {.sink = &stage};
}

Verdict Lane::OnData(const Frame& frame) {
  const ReadPlace place = outbox_.ReadLanding(frame.sequence, frame.length);
  if (place.region == nullptr) return {.violation = "it sent data that was not requested"};
  if (place.region->device == nullptr) return {.place = place.region->base + place.offset};
  ReceiveStage& stage = StageFor(*place.region);
  stage.Begin(*place.region, place.offset, GrantName{}, ReceiveStage::For::kOwnRead);
  return {.sink = &stage};
}

std::string_view Lane::EndWrite(const Frame& frame) {
  write_region_ = nullptr;
  return MustQueue() ? Queue(frame, write_code_) : FinishWrite(frame, write_code_);
}

std::string_view Lane::FinishWrite(const Frame& frame, Code code) {
  if (frame.first) refusals_.Begin(frame.grant);
  if (code != Code::kOk) refusals_.Note(frame.grant, code);
  if (frame.has_signal) {
    const Code signal = Deliver(frame.signal);
    if (code == Code::kOk) code = signal;  // Its bytes are in place all the same.
  }
  if (code != Code::kOk) return outbox_.Answer(frame.sequence, code) ? "" : kTooMany;
  outbox_.Ack(frame.sequence);
  return "";
}

std::string_view Lane::OnSignal(const Frame& frame) {
  if (frame.first) refusals_.Begin(frame.signal.grant);
  const Code code = Deliver(frame.signal);
  if (code != Code::kOk) return outbox_.Answer(frame.sequence, code) ? "" : kTooMany;
  outbox_.Ack(frame.sequence);
  return "";
}

Code Lane::Deliver(const Signal& signal) {
  const Code refused = refusals_.End(signal.grant);
  const Code code = refused == Code::kOk && !grants_.IsOpen(signal.grant) ? Code::kFenced : refused;
  if (code == Code::kOk) shared_.events.Push(SignalArrived{link_, signal});
  return code;
}

std::string_view Lane::OnRead(const Frame& frame) {
  LocalRegion* region = shared_.regions.Find(frame.region, frame.generation);
  Code code = Code::kOk;
  if (region == nullptr || (region->access != Access::kRead && region->access != Access::kReadWrite)) {
    code = Code::kPermission;
  } else if (!InBounds(frame.offset, frame.length, region->length)) {
    code = Code::kOutOfBounds;
  }
  const bool taken = code == Code::kOk ? outbox_.Serve(frame.sequence, *region, frame.offset, frame.length)
                                       : outbox_.Answer(frame.sequence, code);
  return taken ? "" : kTooMany;
}

void Lane::Fence(const GrantName& grant) {
  if (stage_ != nullptr) stage_->Fence(grant);
  if (write_region_ == nullptr || inbox_.in_payload() == nullptr || inbox_.in_payload()->grant != grant)
    return;
  DivertWrite(Code::kFenced);
}

void Lane::Forget(const LocalRegion& region) {
  outbox_.Forget(region);
  if (stage_ != nullptr) stage_->Forget(region);
  if (write_region_ != &region || inbox_.in_payload() == nullptr) return;
  DivertWrite(Code::kPermission);
}

/// The rest of the write that is being received goes into nothing. It waits for no block any more: none may
/// be taken for a region that nobody keeps.
void Lane::DivertWrite(Code code) {
  inbox_.Divert();
  write_region_ = nullptr;
  write_code_ = code;
  has_input_ |= std::exchange(stalled_, false);
  CountWanting();
}

}  // namespace weightcast::transport::tcp
