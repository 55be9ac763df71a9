#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/shm/sender.h"

/// The third path: bytes go through the payload ring, and the target's processor puts them in place.
namespace weightcast::transport::shm {

Sender::Step Sender::StepRing(Pending& pending, const PeerRegion& region, Budget& budget) {
  const bool ring_busy = queue_.waiting();
  if (!paths_->ring_ready) {
    paths_->ring_wanted = true;
    if (paths_->ring_failure == Code::kOk || ring_busy) return Step::kStalled;
    return queue_.Refuse(pending, paths_->ring_failure);
  }
  // The peer serves gets beside the puts that follow them: order is kept by waiting.
  if (!queue_.Joins(Path::kRing)) return Step::kStalled;
  pending.path = Path::kRing;
  if (ring_busy && queue_.At(queue_.next() - 1).op.kind != pending.op.kind) return Step::kStalled;
  return pending.op.kind == OpKind::kRead ? Get(pending, region, /*flags=*/0) : Put(pending, region, budget);
}

Sender::Step Sender::Put(Pending& pending, const PeerRegion& region, Budget& budget) {
  const uint64_t size = std::min(pending.op.length - pending.done, kRingPiece);
  if (size > budget.bytes) return Step::kSpent;
  if (queue_.next() - queue_.head() >= kRingWindow || !outbox_->HasSpace(2)) return Step::kStalled;
  const std::byte* const from = queue_.LocalAt(pending, size);
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

  PutRecord record = BeginPiece(pending, region, size);
  record.position = position;
  outbox_->Push(record);
  budget.bytes -= size;
  return EndPiece(pending, record.length, record.flags);
}

PutRecord Sender::BeginPiece(Pending& pending, const PeerRegion& region, uint64_t size) {
  SendQueue::Scope& scope = queue_.ScopeOf(pending);
  if (pending.done == 0) queue_.Number(pending);
  const bool last = pending.done + size == pending.op.length;
  if (last && pending.op.has_signal) pending.code = scope.failure;
  const bool signalled = last && pending.op.has_signal && scope.failure == Code::kOk;
  const bool first = !std::exchange(scope.on_ring, true);
  const int flags = (last ? kLastPiece : 0) | (signalled ? kSignalled : 0) | (first ? kNewScope : 0);
  return {.flags = static_cast<uint8_t>(flags),
          .slot = static_cast<uint16_t>(pending.op.grant.slot),
          .length = static_cast<uint32_t>(size),
          .grant = pending.op.grant.id,
          .region = region.name.id,
          .generation = region.name.generation,
          .offset = pending.op.remote_offset + pending.done,
          .sequence = pending.sequence};
}

Sender::Step Sender::EndPiece(Pending& pending, uint64_t size, uint8_t flags) {
  const SignalRecord signal = SignalOf(pending.op.signal, /*after_put=*/true);
  if ((flags & kSignalled) != 0) {
    (flags & kInStage) != 0 ? devices_.staging.out.AnnounceSignal(signal) : outbox_->Push(signal);
  }
  pending.done += size;
  if ((flags & kLastPiece) == 0) return Step::kDone;
  if (pending.op.has_signal) queue_.ScopeOf(pending).open = false;
  queue_.Pass();
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
  queue_.NoteFailure(pending, Code::kInvalidArgument);
  if (pending.op.has_signal) queue_.ScopeOf(pending).open = false;
  queue_.Pass();
}

Sender::Step Sender::Get(Pending& pending, const PeerRegion& region, uint8_t flags) {
  if (queue_.next() - queue_.head() >= kGetWindow || !outbox_->HasSpace()) return Step::kStalled;
  queue_.Number(pending);
  if (flags == kInStage) pending.path = Path::kStaged;
  outbox_->Push(GetRecord{.flags = flags,
                          .region = region.name.id,
                          .generation = region.name.generation,
                          .offset = pending.op.remote_offset,
                          .length = pending.op.length,
                          .sequence = pending.sequence});
  queue_.Pass();
  return Step::kDone;
}

Status Sender::OnAnswer(const AnswerRecord& record) {
  const Pending& oldest = queue_.At(queue_.head());
  const uint64_t first = oldest.sequence;
  if (!queue_.waiting() || oldest.op.kind != OpKind::kWrite ||
      record.sequence - first >= queue_.next() - queue_.head() ||
      record.code > static_cast<uint8_t>(Code::kInternal)) {
    return {Code::kProtocol, "it answered a write that this process did not send"};
  }
  for (uint64_t left = record.sequence - first + 1; left > 0; --left) {
    const Pending& pending = queue_.At(queue_.head());
    pulls_ -= pending.records;
    Code code = left == 1 ? static_cast<Code>(record.code) : Code::kOk;
    if (code == Code::kOk) {
      code = pending.code;  // Of an earlier write that its signal stood for as well.
    } else {
      queue_.NoteFailure(pending, code);
    }
    queue_.Complete(code);
  }
  return Status::Ok();
}

Status Sender::OnData(const DataRecord& record, const std::byte* bytes) {
  const auto nonsense = [] { return Status(Code::kProtocol, "it sent bytes that were not asked for"); };
  Pending& pending = queue_.At(queue_.head());
  if (!queue_.waiting() || pending.op.kind != OpKind::kRead || pending.path != Path::kRing ||
      record.sequence != pending.sequence || record.code > static_cast<uint8_t>(Code::kInternal)) {
    return nonsense();
  }
  if (record.code != 0) {
    queue_.Complete(static_cast<Code>(record.code));
    return Status::Ok();
  }
  const bool last = (record.flags & kLastPiece) != 0;
  const uint64_t left = pending.op.length - pending.done;
  if (record.length > left || record.length == 0 || last != (record.length == left)) return nonsense();
  if (std::byte* const into = queue_.LocalAt(pending, record.length); into != nullptr) {
    std::memcpy(into, bytes, record.length);
  } else {
    pending.code = Code::kInvalidArgument;  // Its landing place has gone; the rest is dropped as well.
  }
  pending.done += record.length;
  if (last) queue_.Complete(pending.code);
  return Status::Ok();
}

}  // namespace weightcast::transport::shm
