#include "transport/shm/own_copies.h"

#include <algorithm>

namespace weightcast::transport::shm {

std::optional<OwnCopies::Path> OwnCopies::PathOf(const Op& op, const PeerRegion& region,
                                                 const LocalRegion& local) {
  if (local.device == nullptr || region.key.kind != MemoryKind::kDevice) return std::nullopt;
  if (op.kind == OpKind::kRead) return Path::kReach;
  // What is open may be written at any time, so nobody has to ask the target's processor.
  const bool open = region.key.access == Access::kReadWrite && op.grant.slot == 0;
  return open ? std::optional(Path::kPush) : std::nullopt;
}

OwnCopies::Step OwnCopies::Copy(Pending& front, Path path, const Ends& ends, Code& refused) {
  if (!queue_.Joins(path) || (path == Path::kPush && pushes_.full())) return Step::kStalled;
  if (!Inside(front.op, ends)) {
    refused = Code::kOutOfBounds;
    return Step::kStalled;
  }
  device::Engine& engine = devices_.engines.Of(ends.local->device->device);
  const uint64_t first = std::min(front.op.length - front.done, kDevicePiece);
  if (!engine.Fits(1, first) || (engine.Busy() && !FillsBatch())) return Step::kStalled;
  if (front.done == 0 && Overlaps(queue_.next(), RangeOf(front.op, ends))) return Step::kStalled;
  // One for the batch, before any of the words that forbid is looked at.
  if (path == Path::kPush) outbox_->BeginDevice();
  GatheredCopies batch;
  const Code code = queue_.Admitted(front.op, *ends.region);
  const uint64_t end = code == Code::kOk ? Gather(batch, engine, path, ends) : queue_.next();
  const auto ticket = batch.empty() ? std::nullopt : engine.Submit(batch.copies());
  // One that was not left with the device is over in its turn, as those before it.
  if (path == Path::kPush) pushes_.Push() = {ticket ? &engine : nullptr, ticket.value_or(0)};
  refused = code;
  if (!ticket) return Step::kStalled;
  TakeUp(end, engine, *ticket, path);
  return Step::kDone;
}

/// Gathers from the front on; the first number that is not in the batch. Moves nothing on yet: `gathered` of
/// each says what of it is in the batch.
uint64_t OwnCopies::Gather(GatheredCopies& batch, const device::Engine& engine, Path path, Ends ends) {
  uint64_t index = queue_.next();
  for (; !batch.full(); ++index) {
    Pending& pending = queue_.At(index);
    if (index != queue_.next()) {
      const auto joined = index == queue_.tail() ? std::nullopt : Join(index, path, engine);
      if (!joined) break;
      ends = *joined;
    }
    const Op& op = pending.op;
    const Range to = RangeOf(op, ends);
    std::byte* const here = ends.local->address + op.local_offset + pending.done;
    std::byte* const there = ends.source->At(op.remote_offset + pending.done);
    pending.gathered = std::min(op.length - pending.done, batch.room());
    if (!engine.Fits(batch.pieces() + 1, batch.bytes() + pending.gathered)) break;
    ranges_[index % SendQueue::kMost] = to;
    const bool write = path == Path::kPush;
    const bool same = index != queue_.next() && queue_.At(index - 1).op.local == op.local &&
                      queue_.At(index - 1).op.remote == op.remote;
    batch.Add({.to = write ? there : here,
               .from = write ? here : there,
               .length = pending.gathered,
               .ends = ends.source->EndsWith(ends.local->device->uuid())},
              same);
  }
  return index;
}

/// The ends of an operation behind the front, if it can go into the same batch: checked as the front was.
std::optional<OwnCopies::Ends> OwnCopies::Join(uint64_t index, Path path, const device::Engine& engine) {
  Pending& pending = queue_.At(index);
  const Op& op = pending.op;
  if (op.kind == OpKind::kSignal || op.length == 0 || !queue_.Begin(pending) || pending.code != Code::kOk) {
    return std::nullopt;
  }
  const LocalRegion* const local = context_->regions.Find(op.local);
  const PeerRegion* const region = context_->peer_regions.Find(link_, op.remote);
  if (local == nullptr || region == nullptr || PathOf(op, *region, *local) != path) return std::nullopt;
  if (local->device->device.worker != engine.device().worker) return std::nullopt;
  const Source* const source =
      devices_.sources.Find({region->name.id, region->name.generation}, local->device->uuid());
  if (source == nullptr || source->state != Source::State::kReady) return std::nullopt;
  const Ends ends{.local = local, .region = region, .source = source};
  if (!Inside(op, ends) || Overlaps(index, RangeOf(op, ends))) return std::nullopt;
  if (queue_.Admitted(op, *region) != Code::kOk) return std::nullopt;
  queue_.EnterScope(pending);
  return ends;
}

/// What was gathered up to `end` is under way.
void OwnCopies::TakeUp(uint64_t end, const device::Engine& engine, uint64_t ticket, Path path) {
  for (uint64_t index = queue_.next(); index != end; ++index) {
    Pending& pending = queue_.At(index);
    pending.path = path;
    pending.engine = &engine;
    pending.ticket = ticket;
    pending.done += pending.gathered;
    if (pending.done == pending.op.length) queue_.Pass();
  }
}

/// Whether what waits makes a full batch.
bool OwnCopies::FillsBatch() {
  uint64_t bytes = 0;
  uint64_t index = queue_.next();
  for (; index != queue_.tail() && bytes < kDevicePiece && index - queue_.next() < kDeviceBatch; ++index)
    bytes += queue_.At(index).op.length - queue_.At(index).done;
  return bytes >= kDevicePiece || index - queue_.next() >= kDeviceBatch;
}

bool OwnCopies::Inside(const Op& op, const Ends& ends) {
  return op.remote_offset <= ends.source->length && op.length <= ends.source->length - op.remote_offset;
}

OwnCopies::Range OwnCopies::RangeOf(const Op& op, const Ends& ends) {
  const std::byte* const to =
      op.kind == OpKind::kWrite ? ends.source->At(op.remote_offset) : ends.local->address + op.local_offset;
  return {.begin = to, .end = to + op.length};
}

/// Two copies that are under way must not touch the same bytes: whether one before `end` does, or will as it
/// is gathered already. Those before the front are all of one path here, so each has its range.
bool OwnCopies::Overlaps(uint64_t end, const Range& range) {
  for (uint64_t index = queue_.head(); index != end; ++index) {
    const Range& other = ranges_[index % SendQueue::kMost];
    if (other.begin >= range.end || range.begin >= other.end) continue;
    const Pending& before = queue_.At(index);
    if (index >= queue_.next() || !before.engine->Over(before.ticket)) return true;
  }
  return false;
}

void OwnCopies::EndPushes() {
  uint64_t over = 0;
  for (; !pushes_.empty(); pushes_.Pop(), ++over) {
    const PushedBatch& oldest = pushes_.front();
    if (oldest.engine != nullptr && !oldest.engine->Over(oldest.ticket)) break;
  }
  if (over > 0) outbox_->EndDevice(over);
}

bool OwnCopies::Finish() {
  bool any = false;
  while (queue_.waiting() && !queue_.failed()) {
    Pending& oldest = queue_.At(queue_.head());
    if (oldest.path != Path::kReach && oldest.path != Path::kPush) break;
    if (!oldest.engine->Over(oldest.ticket)) break;
    if (oldest.path == Path::kPush) {
      if (FinishPush(oldest) == Step::kStalled) break;
    } else {
      queue_.Complete(ReadOutcome(oldest));
    }
    any = true;
  }
  return any;
}

/// After its copy was over.
OwnCopies::Step OwnCopies::FinishPush(Pending& pending) {
  if (pending.code == Code::kOk && !pending.engine->Arrived(pending.ticket)) pending.code = Code::kInternal;
  return pending.code == Code::kOk ? queue_.Conclude(pending) : queue_.Refuse(pending, pending.code);
}

/// After its copy was over: whether the peer had not let go of the bytes before.
Code OwnCopies::ReadOutcome(const Pending& pending) const {
  if (pending.code != Code::kOk) return pending.code;
  if (!pending.engine->Arrived(pending.ticket)) return Code::kInternal;
  const PeerRegion* const region = context_->peer_regions.Find(link_, pending.op.remote);
  if (region == nullptr) return Code::kInvalidArgument;
  if (const Code code = queue_.Admitted(pending.op, *region); code != Code::kOk) return code;
  return devices_.life.Ended() ? Code::kUnavailable : Code::kOk;
}

}  // namespace weightcast::transport::shm
