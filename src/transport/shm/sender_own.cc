#include <algorithm>

#include "transport/shm/sender.h"

/// What this side's own device copies: writes to the peer's open device memory (push) and reads (reach). Both
/// need nothing of the peer's processor. Operations that stand one behind the other go as one batch. The peer
/// cannot end a copy into its memory, so it must be able to wait for it: docs/gpu.md, "Push".
namespace weightcast::transport::shm {

/// Which of the two the operation is; nullopt: neither.
std::optional<Sender::Path> Sender::OwnPath(const Op& op, const PeerRegion& region,
                                            const LocalRegion& local) {
  if (local.device == nullptr || region.key.kind != MemoryKind::kDevice) return std::nullopt;
  if (op.kind == OpKind::kRead) return Path::kReach;
  // What is open may be written at any time, so nobody has to ask the target's processor.
  const bool open = region.key.access == Access::kReadWrite && op.grant.slot == 0;
  return open ? std::optional(Path::kPush) : std::nullopt;
}

/// Leaves pieces of the front operation, and of those behind it that go the same way, with the device.
Sender::Step Sender::CopyOwn(Pending& front, Path path, const OwnEnds& ends) {
  if (!Joins(path) || (path == Path::kPush && pushes_.full())) return Step::kStalled;
  if (!Inside(front.op, ends)) return GiveUp(front, Code::kOutOfBounds);
  Engine& engine = devices_.engines.Of(ends.local->device->device);
  const uint64_t first = std::min(front.op.length - front.done, kDevicePiece);
  if (!engine.Fits(1, first) || (engine.Busy() && !FillsBatch())) return Step::kStalled;
  if (front.done == 0 && Overlaps(next_, SpanOf(front.op, ends))) return Step::kStalled;
  // One for the batch, before any of the words that forbid is looked at.
  if (path == Path::kPush) outbox_->BeginDevice();
  GatheredCopies batch;
  const Code code = Admitted(front.op, *ends.region);
  const uint64_t end = code == Code::kOk ? GatherOwn(batch, engine, path, ends) : next_;
  const auto ticket = batch.empty() ? std::nullopt : engine.Submit(batch.copies());
  // One that was not left with the device is over in its turn, as those before it.
  if (path == Path::kPush) pushes_.Push() = {ticket ? &engine : nullptr, ticket.value_or(0)};
  if (code != Code::kOk) return GiveUp(front, code);
  if (!ticket) return Step::kStalled;
  TakeOwn(end, engine, *ticket, path);
  return Step::kDone;
}

/// Gathers from the front on; the first number that is not in the batch. Moves nothing on yet: `gathered` of
/// each says what of it is in the batch.
uint64_t Sender::GatherOwn(GatheredCopies& batch, const Engine& engine, Path path, OwnEnds ends) {
  uint64_t index = next_;
  for (; !batch.full(); ++index) {
    Pending& pending = At(index);
    if (index != next_) {
      const auto joined = index == tail_ ? std::nullopt : JoinOwn(index, path, engine);
      if (!joined) break;
      ends = *joined;
    }
    const Op& op = pending.op;
    const Span to = SpanOf(op, ends);
    std::byte* const here = ends.local->address + op.local_offset + pending.done;
    std::byte* const there = ends.source->At(op.remote_offset + pending.done);
    pending.gathered = std::min(op.length - pending.done, batch.room());
    if (!engine.Fits(batch.pieces() + 1, batch.bytes() + pending.gathered)) break;
    spans_[index % kQueue] = to;
    const bool write = path == Path::kPush;
    const bool same =
        index != next_ && At(index - 1).op.local == op.local && At(index - 1).op.remote == op.remote;
    batch.Add({.to = write ? there : here,
               .from = write ? here : there,
               .length = pending.gathered,
               .ends = ends.source->EndsWith(ends.local->device->uuid())},
              same);
  }
  return index;
}

/// The ends of an operation behind the front, if it can go into the same batch: checked as the front was.
std::optional<Sender::OwnEnds> Sender::JoinOwn(uint64_t index, Path path, const Engine& engine) {
  Pending& pending = At(index);
  const Op& op = pending.op;
  if (op.kind == OpKind::kSignal || op.length == 0 || !Begin(pending) || pending.code != Code::kOk) {
    return std::nullopt;
  }
  const LocalRegion* const local = context_->regions.Find(op.local);
  const PeerRegion* const region = context_->peer_regions.Find(link_, op.remote);
  if (local == nullptr || region == nullptr || OwnPath(op, *region, *local) != path) return std::nullopt;
  if (local->device->device.worker != engine.device().worker) return std::nullopt;
  const Source* const source =
      devices_.sources.Find({region->name.id, region->name.generation}, local->device->uuid());
  if (source == nullptr || source->state != Source::State::kReady) return std::nullopt;
  const OwnEnds ends{.local = local, .region = region, .source = source};
  if (!Inside(op, ends) || Overlaps(index, SpanOf(op, ends))) return std::nullopt;
  if (Admitted(op, *region) != Code::kOk) return std::nullopt;
  EnterScope(pending);
  return ends;
}

/// What was gathered up to `end` is under way.
void Sender::TakeOwn(uint64_t end, const Engine& engine, uint64_t ticket, Path path) {
  for (uint64_t index = next_; index != end; ++index) {
    Pending& pending = At(index);
    pending.path = path;
    pending.engine = &engine;
    pending.ticket = ticket;
    pending.done += pending.gathered;
    if (pending.done == pending.op.length) ++next_;
  }
}

/// Whether what waits makes a full batch.
bool Sender::FillsBatch() {
  uint64_t bytes = 0;
  uint64_t index = next_;
  for (; index != tail_ && bytes < kDevicePiece && index - next_ < kDeviceBatch; ++index)
    bytes += At(index).op.length - At(index).done;
  return bytes >= kDevicePiece || index - next_ >= kDeviceBatch;
}

bool Sender::Inside(const Op& op, const OwnEnds& ends) {
  return op.remote_offset <= ends.source->length && op.length <= ends.source->length - op.remote_offset;
}

Sender::Span Sender::SpanOf(const Op& op, const OwnEnds& ends) {
  const std::byte* const to =
      op.kind == OpKind::kWrite ? ends.source->At(op.remote_offset) : ends.local->address + op.local_offset;
  return {.begin = to, .end = to + op.length};
}

/// Two copies that are under way must not touch the same bytes: whether one before `end` does, or will as it
/// is gathered already. Those before the front are all of one path here, so each has its span.
bool Sender::Overlaps(uint64_t end, const Span& span) {
  for (uint64_t index = head_; index != end; ++index) {
    const Span& other = spans_[index % kQueue];
    if (other.begin >= span.end || span.begin >= other.end) continue;
    const Pending& before = At(index);
    if (index >= next_ || !before.engine->Over(before.ticket)) return true;
  }
  return false;
}

void Sender::EndPushes() {
  uint64_t over = 0;
  for (; !pushes_.empty(); pushes_.Pop(), ++over) {
    const PushedBatch& oldest = pushes_.front();
    if (oldest.engine != nullptr && !oldest.engine->Over(oldest.ticket)) break;
  }
  if (over > 0) outbox_->EndDevice(over);
}

bool Sender::FinishOwn() {
  bool any = false;
  while (head_ != next_ && failed_ == Code::kOk) {
    Pending& oldest = At(head_);
    if (oldest.path != Path::kReach && oldest.path != Path::kPush) break;
    if (!oldest.engine->Over(oldest.ticket)) break;
    if (oldest.path == Path::kPush) {
      if (FinishPush(oldest) == Step::kStalled) break;
    } else {
      Complete(ReadOutcome(oldest));
    }
    any = true;
  }
  return any;
}

/// After its copy was over.
Sender::Step Sender::FinishPush(Pending& pending) {
  if (pending.code == Code::kOk && !pending.engine->Arrived(pending.ticket)) pending.code = Code::kInternal;
  return pending.code == Code::kOk ? Conclude(pending) : Refuse(pending, pending.code);
}

/// After its copy was over: whether the peer had not let go of the bytes before.
Code Sender::ReadOutcome(const Pending& pending) const {
  if (pending.code != Code::kOk) return pending.code;
  if (!pending.engine->Arrived(pending.ticket)) return Code::kInternal;
  const PeerRegion* const region = context_->peer_regions.Find(link_, pending.op.remote);
  if (region == nullptr) return Code::kInvalidArgument;
  if (const Code code = Admitted(pending.op, *region); code != Code::kOk) return code;
  return devices_.life.Ended() ? Code::kUnavailable : Code::kOk;
}

}  // namespace weightcast::transport::shm
