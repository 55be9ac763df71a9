#include <algorithm>

#include "transport/shm/sender.h"

/// Device memory: which path it takes, and writes that the peer's device pulls. What this side's own device
/// copies: own_copies.h. The rest is staged: sender_staged.cc.
namespace weightcast::transport::shm {

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
  outbox_->Push(PullRecord{.flags = piece.flags,
                           .slot = piece.slot,
                           .length = piece.length,
                           .grant = piece.grant,
                           .region = piece.region,
                           .generation = piece.generation,
                           .offset = piece.offset,
                           .source = local.name.id,
                           .source_generation = local.name.generation,
                           .source_offset = op.local_offset + pending.done,
                           .sequence = piece.sequence});
  ++pending.records;
  ++pulls_;
  return EndPiece(pending, size, piece.flags);
}

}  // namespace weightcast::transport::shm
