// What of a lane is about device memory: the peer's frames wait for the copies of what came before them.
#include "transport/tcp/lane.h"

namespace weightcast::transport::tcp {

ReceiveStage& Lane::StageFor(const LocalRegion& region) {
  if (stage_ == nullptr) {
    stage_ = std::make_unique<ReceiveStage>(
        StageParts{*region.device->staging, *shared_.copiers, shared_.regions});
    // The peer's operations and the results of our reads.
    arrivals_ = std::make_unique<Ring<Arrival>>(2 * depth_);
  }
  return *stage_;
}

/// Something that came earlier is not in place yet.
bool Lane::MustQueue() const { return stage_ != nullptr && (!stage_->empty() || !arrivals_->empty()); }

std::string_view Lane::Queue(const Frame& frame, Code code) {
  if (arrivals_->full()) return "it has more operations in flight than were agreed on";
  arrivals_->Push() = {.frame = frame, .code = code, .blocks = stage_->newest()};
  return "";
}

/// All before this frame, and its own bytes, are in place: what had been granted when they came may be over.
std::string_view Lane::Execute(const Frame& frame, Code code) {
  switch (frame.type) {
    case FrameType::kSignal:
      return OnSignal(frame);
    case FrameType::kRead:
      return OnRead(frame);
    case FrameType::kResult:
      return outbox_.OnResult(frame);
    default:
      break;
  }
  if (code == Code::kOk) code = Judge(frame, shared_.regions.Find(frame.region, frame.generation));
  return FinishWrite(frame, code);
}

void Lane::TakeArrivals() {
  bool any = false;
  while (open() && !arrivals_->empty() && !shared_.events.full()) {
    const Arrival& oldest = arrivals_->front();
    if (!stage_->Over(oldest.blocks) || stage_->failed()) break;
    const auto violation = Execute(oldest.frame, oldest.code);
    arrivals_->Pop();
    any = true;
    if (!violation.empty()) return Break(violation);
  }
  if (any) Flush();
}

void Lane::AdvanceCopies() {
  outbox_.Advance();
  if (stage_ == nullptr) return;
  if (open() && stage_->MustYield()) stage_->Yield();
  if (stage_->Advance()) shared_.moved = true;
  TakeArrivals();
}

}  // namespace weightcast::transport::tcp
