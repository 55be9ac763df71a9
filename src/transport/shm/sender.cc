#include "transport/shm/sender.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace weightcast::transport::shm {

Sender::Sender(LinkId link, Context& context, Outbox& outbox, Paths& paths, const SenderDevices& devices)
    : link_(link),
      context_(&context),
      outbox_(&outbox),
      paths_(&paths),
      devices_(devices),
      queue_(link, context, outbox, devices),
      direct_(link, context, outbox, paths, queue_),
      own_(link, context, outbox, devices, queue_) {}

bool Sender::Run(Budget& budget) {
  queue_.ForgetWaits();
  bool any = queue_.waiting() && own_.Finish();
  while (queue_.next() != queue_.tail() && budget.operations > 0 && !context_->events.full()) {
    const Step step = StepFront(budget);
    if (step == Step::kStalled) break;
    any = true;
    if (step == Step::kSpent) break;
    --budget.operations;
  }
  return devices_.staging.out.Flush() || any;
}

Sender::Step Sender::StepFront(Budget& budget) {
  Pending& front = queue_.At(queue_.next());
  if (!queue_.Begin(front)) return Step::kStalled;
  queue_.EnterScope(front);
  const bool ring_busy = queue_.waiting();
  if (front.code != Code::kOk) return ring_busy ? Step::kStalled : queue_.Refuse(front, front.code);
  if (front.moved) return queue_.Conclude(front);
  if (front.op.kind != OpKind::kSignal) return StepPath(front, budget);
  if (ring_busy) return Step::kStalled;
  return outbox_->GrantOpen(front.op.grant) ? queue_.Conclude(front) : queue_.Refuse(front, Code::kFenced);
}

Sender::Step Sender::StepPath(Pending& pending, Budget& budget) {
  PeerRegion* region = context_->peer_regions.Find(link_, pending.op.remote);
  if (region == nullptr) pending.code = Code::kInvalidArgument;  // Released with operations in flight.
  const bool ring_busy = queue_.waiting();
  if (pending.device && region != nullptr && pending.op.length > 0)
    return StepDevice(pending, *region, budget);
  const Path path = region == nullptr ? Path::kMapped : direct_.PathOf(pending.op, *region);
  if (path == Path::kRing && pending.op.length > 0) return StepRing(pending, *region, budget);
  if (path == Path::kCopy && PeerCopies(pending))
    return Pull(pending, *region, *context_->regions.Find(pending.op.local));
  if (ring_busy) return Step::kStalled;
  if (region == nullptr) return queue_.Refuse(pending, pending.code);
  if (pending.op.length == 0) return direct_.Touch(pending, *region);
  return path == Path::kMapped ? direct_.Move(pending, *region, budget) : direct_.CopyBatch(budget);
}

/// Of a write by cross-process copy: the peer copies where this processor has more peers to serve than the
/// peer has writers, so that more processors work. Once begun, the rest goes the way of the beginning.
bool Sender::PeerCopies(const Pending& pending) {
  const Op& op = pending.op;
  // The region's bounds once more: the peer cannot know them.
  if (!paths_->peer_reads || op.kind != OpKind::kWrite || op.length == 0 || op.length > kLongestPull ||
      pending.done > 0 || queue_.LocalAt(pending, op.length) == nullptr) {
    return false;
  }
  if (context_->cross_copies == CrossCopies::kByTarget) return true;
  const bool pulls = queue_.waiting() && queue_.Joins(Path::kPull);
  return op.grant.slot != 0 && (pulls || op.length >= kLeastPull) &&
         context_->senders > std::max<uint64_t>(outbox_->PeerWriters(), 1);
}

// --- The ring: the target's processor puts the bytes in place ------------------------------------

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
    if (code == Code::kUnavailable && pending.path == Path::kPull && !pending.device)
      paths_->peer_reads = false;
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

// --- Device memory: which path it takes, and what the peer's device pulls ---
// What this side's own device copies: own_copies.h.

/// Chooses the path.
Sender::Step Sender::StepDevice(Pending& pending, const PeerRegion& region, Budget& budget) {
  const LocalRegion* const local = context_->regions.Find(pending.op.local);
  if (local == nullptr) return GiveUp(pending, Code::kInvalidArgument);
  if (pending.done > 0 && pending.path == Path::kStaged) return Stage(pending, region, *local, budget);
  const bool both = local->device != nullptr && region.key.kind == MemoryKind::kDevice;
  if (const auto own = OwnCopies::PathOf(pending.op, region, *local)) {
    const Source* const source =
        devices_.sources.FindOrAsk({region.name.id, region.name.generation}, local->device->uuid());
    if (source->state == Source::State::kMapping) return Step::kStalled;
    if (source->state == Source::State::kReady) {
      Code refused = Code::kOk;
      const Step step = own_.Copy(pending, *own, {local, &region, source}, refused);
      return refused == Code::kOk ? step : GiveUp(pending, refused);
    }
    if (source->failure == Code::kPermission) return GiveUp(pending, Code::kPermission);
  }
  // Where this side cannot map the target, the target may still be able to map the source.
  if (both && pending.op.kind == OpKind::kWrite) {
    const auto state = devices_.offers.Ask(*local, region.key.device);
    if (state == SourceOffers::State::kAsked) return Step::kStalled;
    if (state == SourceOffers::State::kReads) return Pull(pending, region, *local);
  }
  return Stage(pending, region, *local, budget);
}

/// It cannot go on. What the peer or a device has of it already is waited for.
Sender::Step Sender::GiveUp(Pending& pending, Code code) {
  if (pending.done == 0) {
    if (queue_.waiting()) return Step::kStalled;
    return queue_.Refuse(pending, code);
  }
  if (pending.path != Path::kReach && pending.path != Path::kPush) {
    const bool room = pending.path == Path::kStaged ? devices_.staging.out.HasRoom() : outbox_->HasSpace();
    if (!room) return Step::kStalled;
    Abandon(pending);
    return Step::kDone;
  }
  pending.code = code;
  queue_.Pass();
  return Step::kDone;
}

Sender::Step Sender::Pull(Pending& pending, const PeerRegion& region, const LocalRegion& local) {
  const Op& op = pending.op;
  if (!queue_.Joins(Path::kPull) || pulls_ >= kRingWindow || queue_.next() - queue_.head() >= kRingWindow ||
      !outbox_->HasSpace(2)) {
    return Step::kStalled;
  }
  pending.path = Path::kPull;
  const uint64_t size = std::min(op.length - pending.done, kLongestPull);
  const PutRecord piece = BeginPiece(pending, region, size);
  const uint64_t offset = op.local_offset + pending.done;
  const int source = pending.device ? 0 : kFromHost;
  outbox_->Push(PullRecord{
      .flags = static_cast<uint8_t>(piece.flags | source),
      .slot = piece.slot,
      .length = piece.length,
      .grant = piece.grant,
      .region = piece.region,
      .generation = piece.generation,
      .offset = piece.offset,
      .source = local.name.id,
      .source_generation = local.name.generation,
      .source_offset = pending.device ? offset : reinterpret_cast<uint64_t>(local.address) + offset,
      .sequence = piece.sequence});
  ++pending.records;
  ++pulls_;
  return EndPiece(pending, size, piece.flags);
}

// --- Device memory that no device of the other end reads -----------------------------------------

// Bytes go through the staging ring, and the target puts them in place.

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
