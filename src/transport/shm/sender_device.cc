#include <algorithm>

#include "transport/shm/sender.h"

/// Device memory: writes that the peer's device pulls, and reads by this side's own. Writes by this side's
/// own: sender_push.cc. The rest is staged: sender_staged.cc.
namespace weightcast::transport::shm {

/// Chooses the path.
Sender::Step Sender::StepDevice(Pending& pending, const PeerRegion& region, Budget& budget) {
  const LocalRegion* const local = context_->regions.Find(pending.op.local);
  if (local == nullptr) return GiveUp(pending, Code::kInvalidArgument);
  if (pending.done > 0 && pending.road == Road::kStaged) return Stage(pending, region, *local, budget);
  const bool both = local->device != nullptr && region.key.kind == MemoryKind::kDevice;
  // What is open may be written at any time, so nobody has to ask the target's processor. Where this side
  // cannot map it, the target may still be able to map the source.
  const bool open = region.key.access == Access::kReadWrite && pending.op.grant.slot == 0;
  if (both && pending.op.kind == OpKind::kWrite && open) {
    const Source* const target =
        devices_.sources.FindOrAsk({region.name.id, region.name.generation}, local->device->uuid());
    if (target->state == Source::State::kMapping) return Step::kStalled;
    if (target->state == Source::State::kReady) return Push(pending, region, *local, *target);
    if (target->failure == Code::kPermission) return GiveUp(pending, Code::kPermission);
  }
  if (both && pending.op.kind == OpKind::kWrite) {
    const auto state = devices_.offers.Ask(*local, region.key.device);
    if (state == SourceOffers::State::kAsked) return Step::kStalled;
    if (state == SourceOffers::State::kReads) return Pull(pending, region, *local);
  } else if (both) {
    const Source* const source =
        devices_.sources.FindOrAsk({region.name.id, region.name.generation}, local->device->uuid());
    if (source->state == Source::State::kMapping) return Step::kStalled;
    if (source->state == Source::State::kReady) return Reach(pending, region, *local, *source);
    if (source->failure == Code::kPermission) return GiveUp(pending, Code::kPermission);
  }
  return Stage(pending, region, *local, budget);
}

/// It cannot go on. What the peer or a device has of it already is waited for.
Sender::Step Sender::GiveUp(Pending& pending, Code code) {
  if (pending.done == 0) {
    if (head_ != next_) return Step::kStalled;
    return Refuse(pending, code);
  }
  if (pending.road != Road::kReach && pending.road != Road::kPush) {
    const bool room = pending.road == Road::kStaged ? devices_.staging.out.HasRoom() : outbox_->HasSpace();
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
  if (!Joins(Road::kPull) || pulls_ >= kRingWindow || next_ - head_ >= kRingWindow || !outbox_->HasSpace(2)) {
    return Step::kStalled;
  }
  pending.road = Road::kPull;
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

/// Two copies that are under way must not touch the same bytes.
bool Sender::Overlaps(const std::byte* to, uint64_t length) {
  for (uint64_t index = head_; index != next_; ++index) {
    const Pending& before = At(index);
    if (before.engine == nullptr || before.engine->Over(before.ticket)) continue;
    if (before.to < to + length && to < before.to + before.op.length) return true;
  }
  return false;
}

Sender::Step Sender::Reach(Pending& pending, const PeerRegion& region, const LocalRegion& local,
                           const Source& source) {
  const Op& op = pending.op;
  if (!Joins(Road::kReach) || next_ - head_ >= kGetWindow) return Step::kStalled;
  std::byte* const to = local.address + op.local_offset;
  if (pending.done == 0 && Overlaps(to, op.length)) return Step::kStalled;
  if (op.remote_offset > source.length || op.length > source.length - op.remote_offset) {
    return GiveUp(pending, Code::kOutOfBounds);
  }
  if (const Code code = Admitted(op, region); code != Code::kOk) return GiveUp(pending, code);
  Engine& engine = devices_.engines.Of(local.device->device);
  const device::Copy copy{.to = to + pending.done,
                          .from = source.At(op.remote_offset + pending.done),
                          .length = std::min(op.length - pending.done, kDevicePiece),
                          .ends = source.EndsWith(local.device->uuid())};
  const auto ticket = engine.Submit({&copy, 1});
  if (!ticket) return Step::kStalled;
  pending.road = Road::kReach;
  pending.to = to;
  pending.engine = &engine;
  pending.ticket = *ticket;
  pending.done += copy.length;
  if (pending.done == op.length) ++next_;
  return Step::kDone;
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

bool Sender::FinishOwn() {
  bool any = false;
  while (head_ != next_ && failed_ == Code::kOk) {
    Pending& oldest = At(head_);
    if (oldest.road != Road::kReach && oldest.road != Road::kPush) break;
    if (!oldest.engine->Over(oldest.ticket)) break;
    if (oldest.road == Road::kPush) {
      if (FinishPush(oldest) == Step::kStalled) break;
    } else {
      const Code code = ReadOutcome(oldest);
      Complete(code, code == Code::kOk ? Written::kYes : Written::kNo);
    }
    any = true;
  }
  return any;
}

}  // namespace weightcast::transport::shm
