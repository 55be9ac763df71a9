#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/shm/sender.h"

/// The third path: bytes go through the payload ring, and the target's processor puts them in place.
namespace weightcast::transport::shm {

Sender::Step Sender::StepRing(Pending& pending, const PeerRegion& region, Budget& budget) {
  const bool ring_busy = head_ != next_;
  if (!paths_->ring_ready) {
    paths_->ring_wanted = true;
    if (paths_->ring_failure == Code::kOk || ring_busy) return Step::kStalled;
    return Refuse(pending, paths_->ring_failure);
  }
  // The peer serves gets beside the puts that follow them: order is kept by waiting.
  if (!Joins(Path::kRing)) return Step::kStalled;
  pending.path = Path::kRing;
  if (ring_busy && At(next_ - 1).op.kind != pending.op.kind) return Step::kStalled;
  return pending.op.kind == OpKind::kRead ? Get(pending, region) : Put(pending, region, budget);
}

Sender::Step Sender::Put(Pending& pending, const PeerRegion& region, Budget& budget) {
  const Op& op = pending.op;
  const uint64_t size = std::min(op.length - pending.done, kRingPiece);
  if (size > budget.bytes) return Step::kSpent;
  if (next_ - head_ >= kRingWindow || !outbox_->HasSpace(2)) return Step::kStalled;
  const std::byte* const from = LocalAt(pending, size);
  if (from == nullptr) {
    if (pending.done == 0) {
      pending.code = Code::kInvalidArgument;  // Nothing sent yet: refused when its turn comes.
    } else {
      Abandon(pending);
    }
    return Step::kDone;
  }
  uint64_t position = 0;
  std::byte* const room = outbox_->Reserve(size, position);
  if (room == nullptr) return Step::kStalled;
  std::memcpy(room, from, size);
  outbox_->Commit(position, size);

  const uint8_t flags = BeginPiece(pending, size);
  outbox_->Push(PutRecord{.flags = flags,
                          .slot = static_cast<uint16_t>(op.grant.slot),
                          .length = static_cast<uint32_t>(size),
                          .grant = op.grant.id,
                          .region = region.name.id,
                          .generation = region.name.generation,
                          .offset = op.remote_offset + pending.done,
                          .position = position,
                          .sequence = pending.sequence});
  budget.bytes -= size;
  return EndPiece(pending, size, flags);
}

uint8_t Sender::BeginPiece(Pending& pending, uint64_t size) {
  Scope& scope = scopes_[pending.op.grant.slot];
  if (pending.done == 0) pending.sequence = next_sequence_++;
  const bool last = pending.done + size == pending.op.length;
  if (last && pending.op.has_signal) pending.code = scope.failure;
  const bool signalled = last && pending.op.has_signal && scope.failure == Code::kOk;
  const bool first = !std::exchange(scope.on_ring, true);
  return static_cast<uint8_t>((last ? kLastPiece : 0) | (signalled ? kSignalled : 0) |
                              (first ? kNewScope : 0));
}

Sender::Step Sender::EndPiece(Pending& pending, uint64_t size, uint8_t flags) {
  const SignalRecord signal = SignalOf(pending.op.signal, /*after_put=*/true);
  if ((flags & kSignalled) != 0) {
    (flags & kInStage) != 0 ? devices_.staging.out.AnnounceSignal(signal) : outbox_->Push(signal);
  }
  pending.done += size;
  if ((flags & kLastPiece) == 0) return Step::kDone;
  if (pending.op.has_signal) scopes_[pending.op.grant.slot].open = false;
  ++next_;
  return Step::kDone;
}

/// The source went away in the middle: the peer must not wait for the rest. Its answer ends the operation.
void Sender::Abandon(Pending& pending) {
  PutRecord record{.flags = kLastPiece | kAbandoned,
                   .slot = static_cast<uint16_t>(pending.op.grant.slot),
                   .grant = pending.op.grant.id,
                   .sequence = pending.sequence};
  if (pending.path == Path::kStaged) {
    record.flags |= kInStage;
    devices_.staging.out.Add(record);
  } else {
    outbox_->Push(record);
  }
  NoteFailure(pending, Code::kInvalidArgument);
  if (pending.op.has_signal) scopes_[pending.op.grant.slot].open = false;
  ++next_;
}

Sender::Step Sender::Get(Pending& pending, const PeerRegion& region) {
  if (next_ - head_ >= kGetWindow || !outbox_->HasSpace()) return Step::kStalled;
  pending.sequence = next_sequence_++;
  outbox_->Push(GetRecord{.region = region.name.id,
                          .generation = region.name.generation,
                          .offset = pending.op.remote_offset,
                          .length = pending.op.length,
                          .sequence = pending.sequence});
  ++next_;
  return Step::kDone;
}

Status Sender::OnAnswer(const AnswerRecord& record) {
  const uint64_t first = At(head_).sequence;
  if (head_ == next_ || At(head_).op.kind != OpKind::kWrite || record.sequence - first >= next_ - head_ ||
      record.code > static_cast<uint8_t>(Code::kInternal)) {
    return {Code::kProtocol, "it answered a write that this process did not send"};
  }
  for (uint64_t left = record.sequence - first + 1; left > 0; --left) {
    const Pending& pending = At(head_);
    pulls_ -= pending.records;
    Code code = left == 1 ? static_cast<Code>(record.code) : Code::kOk;
    if (code == Code::kOk) {
      code = pending.code;  // Of an earlier write that its signal stood for as well.
    } else {
      NoteFailure(pending, code);
    }
    Complete(code);
  }
  return Status::Ok();
}

Status Sender::OnData(const DataRecord& record, const std::byte* bytes) {
  const auto nonsense = [] { return Status(Code::kProtocol, "it sent bytes that were not asked for"); };
  Pending& pending = At(head_);
  if (head_ == next_ || pending.op.kind != OpKind::kRead || pending.path != Path::kRing ||
      record.sequence != pending.sequence || record.code > static_cast<uint8_t>(Code::kInternal)) {
    return nonsense();
  }
  if (record.code != 0) {
    Complete(static_cast<Code>(record.code));
    return Status::Ok();
  }
  const bool last = (record.flags & kLastPiece) != 0;
  const uint64_t left = pending.op.length - pending.done;
  if (record.length > left || record.length == 0 || last != (record.length == left)) return nonsense();
  if (std::byte* const into = LocalAt(pending, record.length); into != nullptr) {
    std::memcpy(into, bytes, record.length);
  } else {
    pending.code = Code::kInvalidArgument;  // Its landing place has gone; the rest is dropped as well.
  }
  pending.done += record.length;
  if (last) Complete(pending.code);
  return Status::Ok();
}

}  // namespace weightcast::transport::shm
