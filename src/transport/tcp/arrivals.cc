#include "transport/tcp/arrivals.h"

namespace weightcast::transport::tcp {

Arrivals::Arrivals(const LinkShared& shared, LaneOwner& owner, uint32_t lane, Inbox& inbox,
                   OwnOperations& own, PeerOperations& peers)
    : owner_(owner),
      lane_(lane),
      depth_(shared.terms.depth),
      events_(shared.events),
      inbox_(inbox),
      own_(own),
      peers_(peers),
      stage_(shared.copiers, shared.regions) {}

Verdict Arrivals::OnFrame(const Frame& frame) {
  const bool operation =
      frame.type == FrameType::kWrite || frame.type == FrameType::kSignal || frame.type == FrameType::kRead;
  if (operation && frame.sequence != next_sequence_++)
    return {.violation = "it sent an operation out of order"};
  switch (frame.type) {
    case FrameType::kWrite:
      return OnWrite(frame);
    case FrameType::kSignal:
      return {.violation = MustQueue() ? Queue(frame, Code::kOk) : peers_.OnSignal(frame)};
    case FrameType::kRead:
      return {.violation = MustQueue() ? Queue(frame, Code::kOk) : peers_.OnRead(frame)};
    case FrameType::kAck:
      return {.violation = own_.OnAck(frame.sequence)};
    case FrameType::kResult:
      if (MustQueue() && own_.IsRead(frame.sequence)) return {.violation = Queue(frame, Code::kOk)};
      return {.violation = own_.OnResult(frame)};
    case FrameType::kLaneOver:
      return {.violation = owner_.OnLaneOver(lane_, frame)};
    case FrameType::kData:
      return OnData(frame);
  }
  return {.violation = "it sent a frame of an unknown type"};
}

Verdict Arrivals::OnWrite(const Frame& frame) {
  LocalRegion* region = nullptr;
  write_code_ = peers_.Judge(frame, region);
  write_region_ = write_code_ == Code::kOk ? region : nullptr;
  if (write_region_ == nullptr) return {};
  return Land(*region, frame.offset, frame.grant, ReceiveStage::For::kPeersWrite);
}

Verdict Arrivals::OnData(const Frame& frame) {
  const ReadPlace place = own_.ReadLanding(frame.sequence, frame.length);
  if (place.region == nullptr) return {.violation = "it sent data that was not requested"};
  return Land(*place.region, place.offset, GrantName{}, ReceiveStage::For::kOwnRead);
}

/// Where the payload goes that follows.
Verdict Arrivals::Land(LocalRegion& region, uint64_t offset, const GrantName& grant, ReceiveStage::For whom) {
  if (region.device == nullptr) return {.place = region.base + offset};
  // For the peer's operations and the results of our reads.
  if (!stage_.in_use()) waiting_ = Ring<Waiting>(2 * depth_);
  stage_.Begin(region, offset, grant, whom);
  return {.sink = &stage_};
}

std::string_view Arrivals::OnPayload(const Frame& frame) {
  if (!stage_.empty()) stage_.Yield();
  if (frame.type != FrameType::kWrite) {
    own_.OnData(frame.sequence, frame.length);
    return "";
  }
  write_region_ = nullptr;
  return MustQueue() ? Queue(frame, write_code_) : peers_.OnWrite(frame, write_code_);
}

std::string_view Arrivals::Queue(const Frame& frame, Code code) {
  if (waiting_.full()) return PeerOperations::kTooMany;
  waiting_.Push() = {.frame = frame, .code = code, .blocks = stage_.newest()};
  return "";
}

/// All before this frame, and its own bytes, are in place: what had been granted when they came may be over.
std::string_view Arrivals::Execute(const Frame& frame, Code code) {
  switch (frame.type) {
    case FrameType::kSignal:
      return peers_.OnSignal(frame);
    case FrameType::kRead:
      return peers_.OnRead(frame);
    case FrameType::kResult:
      return own_.OnResult(frame);
    default:
      break;
  }
  LocalRegion* region = nullptr;
  if (code == Code::kOk) code = peers_.Judge(frame, region);
  return peers_.OnWrite(frame, code);
}

std::string_view Arrivals::TakeWaiting(bool& any) {
  while (!waiting_.empty() && !events_.full()) {
    const Waiting& oldest = waiting_.front();
    if (!stage_.Over(oldest.blocks) || stage_.failed()) break;
    const auto violation = Execute(oldest.frame, oldest.code);
    waiting_.Pop();
    any = true;
    if (!violation.empty()) return violation;
  }
  return "";
}

bool Arrivals::Fence(const GrantName& grant) {
  stage_.Fence(grant);
  const Frame* const begun = inbox_.in_payload();
  if (write_region_ == nullptr || begun == nullptr || begun->grant != grant) return false;
  return DivertWrite(Code::kFenced);
}

bool Arrivals::Forget(const LocalRegion& region) {
  stage_.Forget(region);
  if (write_region_ != &region || inbox_.in_payload() == nullptr) return false;
  return DivertWrite(Code::kPermission);
}

/// It waits for no block any more: none may be taken for a region that nobody keeps.
bool Arrivals::DivertWrite(Code code) {
  inbox_.Divert();
  write_region_ = nullptr;
  write_code_ = code;
  return true;
}

}  // namespace weightcast::transport::tcp
