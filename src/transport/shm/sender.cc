#include "transport/shm/sender.h"

#include <algorithm>

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
  if (ring_busy) return Step::kStalled;
  if (region == nullptr) return queue_.Refuse(pending, pending.code);
  if (pending.op.length == 0) return direct_.Touch(pending, *region);
  return path == Path::kMapped ? direct_.Move(pending, *region, budget) : direct_.CopyBatch(budget);
}

}  // namespace weightcast::transport::shm
