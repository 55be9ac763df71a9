#include <algorithm>

#include "transport/shm/sender.h"

/// Writes to the peer's open device memory by this side's device: they need nothing of the peer's processor.
/// The peer cannot end such a copy, so it must be able to wait for it: docs/gpu.md, "Push".
namespace weightcast::transport::shm {

Sender::Step Sender::Push(Pending& pending, const PeerRegion& region, const LocalRegion& local,
                          const Source& target) {
  const Op& op = pending.op;
  if (!Joins(Road::kPush) || pushes_.full()) return Step::kStalled;
  if (op.remote_offset > target.length || op.length > target.length - op.remote_offset) {
    return GiveUp(pending, Code::kOutOfBounds);
  }
  std::byte* const to = target.At(op.remote_offset);
  if (pending.done == 0 && Overlaps(to, op.length)) return Step::kStalled;
  Engine& engine = devices_.engines.Of(local.device->device);
  const device::Copy copy{.to = to + pending.done,
                          .from = local.address + op.local_offset + pending.done,
                          .length = std::min(op.length - pending.done, kDevicePiece),
                          .ends = target.EndsWith(local.device->uuid())};
  outbox_->BeginDevice();
  const Code code = Admitted(op, region);
  const auto ticket = code == Code::kOk ? engine.Submit({&copy, 1}) : std::nullopt;
  // One that was not left with the device is over in its turn, as those before it.
  pushes_.Push() = {.engine = ticket ? &engine : nullptr, .ticket = ticket.value_or(0)};
  if (code != Code::kOk) return GiveUp(pending, code);
  if (!ticket) return Step::kStalled;
  pending.road = Road::kPush;
  pending.to = to;
  pending.engine = &engine;
  pending.ticket = *ticket;
  pending.done += copy.length;
  if (pending.done == op.length) ++next_;
  return Step::kDone;
}

void Sender::EndPushes() {
  uint64_t over = 0;
  for (; !pushes_.empty(); pushes_.Pop(), ++over) {
    const PushedCopy& oldest = pushes_.front();
    if (oldest.engine != nullptr && !oldest.engine->Over(oldest.ticket)) break;
  }
  if (over > 0) outbox_->EndDevice(over);
}

/// After its copy was over.
Sender::Step Sender::FinishPush(Pending& pending) {
  if (pending.code == Code::kOk && !pending.engine->Arrived(pending.ticket)) pending.code = Code::kInternal;
  return pending.code == Code::kOk ? Conclude(pending) : Refuse(pending, pending.code);
}

}  // namespace weightcast::transport::shm
