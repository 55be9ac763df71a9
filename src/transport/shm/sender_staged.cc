#include <algorithm>

#include "transport/shm/sender.h"

/// Device memory that no device of the other end reads: bytes go through the staging ring, and the target
/// puts them in place.
namespace weightcast::transport::shm {

Sender::Step Sender::Stage(Pending& pending, const PeerRegion& region, const LocalRegion& local,
                           Budget& budget) {
  if (pending.done > 0 && pending.path != Path::kStaged) return GiveUp(pending, Code::kUnavailable);
  // The peer serves reads beside the writes that follow them: order is kept by waiting.
  if (!queue_.Joins(Path::kStaged) ||
      (queue_.waiting() && queue_.At(queue_.next() - 1).op.kind != pending.op.kind)) {
    return Step::kStalled;
  }
  return pending.op.kind == OpKind::kRead ? Get(pending, region, kInStage)
                                          : StageWrite(pending, region, local, budget);
}

Sender::Step Sender::StageWrite(Pending& pending, const PeerRegion& region, const LocalRegion& local,
                                Budget& budget) {
  StagedOut& out = devices_.staging.out;
  const device::Device* const device = local.device == nullptr ? nullptr : &local.device->device;
  if (queue_.next() - queue_.head() >= kRingWindow) return Step::kStalled;
  const auto ready = out.Ready(device);
  if (ready == StagedOut::State::kWaits) return Step::kStalled;
  if (ready == StagedOut::State::kFailed) return GiveUp(pending, out.failure());
  const uint64_t size = std::min(pending.op.length - pending.done, out.Most(device));
  if (device == nullptr && size > budget.bytes) return Step::kSpent;
  const std::byte* const from = queue_.LocalAt(pending, size);
  if (from == nullptr) return GiveUp(pending, Code::kInvalidArgument);
  const auto position = out.Bring(device, from, size);
  if (!position) return Step::kStalled;
  if (device == nullptr) budget.bytes -= size;
  pending.path = Path::kStaged;
  PutRecord record = BeginPiece(pending, region, size);
  record.flags |= kInStage;
  record.position = *position;
  out.Announce(record);
  return EndPiece(pending, record.length, record.flags);
}

bool Sender::Awaits(const DataRecord& record) {
  arriving_ = std::max(arriving_, queue_.head());
  if (arriving_ >= queue_.next()) return false;
  const Pending& pending = queue_.At(arriving_);
  if (pending.op.kind != OpKind::kRead || pending.path != Path::kStaged ||
      record.sequence != pending.sequence || record.code > static_cast<uint8_t>(Code::kInternal)) {
    return false;
  }
  const bool last = (record.flags & kLastPiece) != 0;
  if (record.code != 0) return last;
  const uint64_t left = pending.op.length - pending.done;
  return record.length <= left && last == (record.length == left);
}

Status Sender::OnStagedData(const DataRecord& record) {
  if (!Awaits(record)) return {Code::kProtocol, "it sent bytes that were not asked for"};
  Pending& pending = queue_.At(arriving_);
  WC_RETURN_IF_ERROR(
      devices_.staging.in.AddData(record, pending.op.local, pending.op.local_offset + pending.done));
  if (record.code == 0) pending.done += record.length;
  if ((record.flags & kLastPiece) != 0) ++arriving_;
  return Status::Ok();
}

void Sender::OnStagedPlaced(uint8_t flags, Code code) {
  Pending& pending = queue_.At(queue_.head());
  if (pending.code == Code::kOk) pending.code = code;
  if ((flags & kLastPiece) == 0) return;
  queue_.Complete(pending.code);
}

}  // namespace weightcast::transport::shm
