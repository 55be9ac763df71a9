#include <algorithm>

#include "transport/shm/sender.h"

/// Device memory: which path it takes, and writes that the peer's device pulls. What this side's own device
/// copies: sender_own.cc. The rest is staged: sender_staged.cc.
namespace weightcast::transport::shm {

/// Chooses the path.
Sender::Step Sender::StepDevice(Pending& pending, const PeerRegion& region, Budget& budget) {
  const LocalRegion* const local = context_->regions.Find(pending.op.local);
  if (local == nullptr) return GiveUp(pending, Code::kInvalidArgument);
  if (pending.done > 0 && pending.path == Path::kStaged) return Stage(pending, region, *local, budget);
  const bool both = local->device != nullptr && region.key.kind == MemoryKind::kDevice;
  if (const auto own = OwnPath(pending.op, region, *local)) {
    const Source* const source =
        devices_.sources.FindOrAsk({region.name.id, region.name.generation}, local->device->uuid());
    if (source->state == Source::State::kMapping) return Step::kStalled;
    if (source->state == Source::State::kReady) return CopyOwn(pending, *own, {local, &region, source});
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
    if (head_ != next_) return Step::kStalled;
    return Refuse(pending, code);
  }
  if (pending.path != Path::kReach && pending.path != Path::kPush) {
    const bool room = pending.path == Path::kStaged ? devices_.staging.out.HasRoom() : outbox_->HasSpace();
    if (!room) return Step::kStalled;
    Abandon(pending);
    return Step::kDone;
  }
  pending.code = code;
  ++next_;
  return Step::kDone;
}

Sender::Step Sender::Pull(Pending& pending, const PeerRegion& region, const LocalRegion& local) {
  const Op& op = pending.op;
  if (!Joins(Path::kPull) || pulls_ >= kRingWindow || next_ - head_ >= kRingWindow || !outbox_->HasSpace(2)) {
    return Step::kStalled;
  }
  pending.path = Path::kPull;
  const uint64_t size = std::min(op.length - pending.done, kLongestPull);
  const uint8_t flags = BeginPiece(pending, size);
  outbox_->Push(PullRecord{.flags = flags,
                           .slot = static_cast<uint16_t>(op.grant.slot),
                           .length = static_cast<uint32_t>(size),
                           .grant = op.grant.id,
                           .region = region.name.id,
                           .generation = region.name.generation,
                           .offset = op.remote_offset + pending.done,
                           .source = local.name.id,
                           .source_generation = local.name.generation,
                           .source_offset = op.local_offset + pending.done,
                           .sequence = pending.sequence});
  ++pending.records;
  ++pulls_;
  return EndPiece(pending, size, flags);
}

}  // namespace weightcast::transport::shm
