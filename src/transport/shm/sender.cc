#include "transport/shm/sender.h"

#include <algorithm>

namespace weightcast::transport::shm {

Sender::Sender(LinkId link, Context& context, Outbox& outbox, Paths& paths, const SenderDevices& devices)
    : link_(link), context_(&context), outbox_(&outbox), paths_(&paths), devices_(devices), queue_(kQueue) {}

size_t Sender::Take(std::span<const Op> ops) {
  size_t taken = 0;
  for (const Op& op : ops) {
    if (tail_ - head_ == kQueue || context_->events.full()) break;
    At(tail_++) = Pending{.op = op};
    ++taken;
  }
  return taken;
}

bool Sender::Run(Budget& budget) {
  waits_for_device_ = false;
  bool any = head_ != next_ && FinishOwn();
  while (next_ != tail_ && budget.operations > 0 && !context_->events.full()) {
    const Step step = StepFront(budget);
    if (step == Step::kStalled) break;
    any = true;
    if (step == Step::kSpent) break;
    --budget.operations;
  }
  return devices_.staging.out.Flush() || any;
}

Code Sender::Check(Pending& pending) const {
  const Op& op = pending.op;
  if (op.grant.slot >= kGrantSlots || (op.grant.slot == 0) != (op.grant.id == 0)) {
    return Code::kInvalidArgument;
  }
  if (op.kind == OpKind::kSignal) return op.has_signal ? Code::kOk : Code::kInvalidArgument;
  if (op.kind == OpKind::kRead && op.has_signal) return Code::kInvalidArgument;
  const PeerRegion* region = context_->peer_regions.Find(link_, op.remote);
  const LocalRegion* local = context_->regions.Find(op.local);
  if (region == nullptr || local == nullptr) return Code::kInvalidArgument;
  pending.device = region->key.kind == MemoryKind::kDevice || local->device != nullptr;
  if (region->state == PeerRegion::State::kFailed) return region->failure;
  if (op.remote_offset > region->length || op.length > region->length - op.remote_offset) {
    return Code::kOutOfBounds;
  }
  if (op.local_offset > local->length || op.length > local->length - op.local_offset) {
    return Code::kOutOfBounds;
  }
  const Access access = region->key.access;
  if (op.kind == OpKind::kRead) return PeersRead(access) ? Code::kOk : Code::kPermission;
  if (!PeersWrite(access)) return Code::kPermission;
  return access == Access::kGranted && op.grant.slot == 0 ? Code::kPermission : Code::kOk;
}

bool Sender::Begin(Pending& pending) {
  if (pending.checked) return true;
  if (pending.op.after != nullptr && !pending.op.after->Done()) {
    waits_for_device_ = true;
    // Its device's failure is the link's from now on: no event of a lost context is ever over.
    const LocalRegion* const local = context_->regions.Find(pending.op.local);
    if (local != nullptr && local->device != nullptr) devices_.engines.Of(local->device->device);
    return false;
  }
  if (pending.op.kind != OpKind::kSignal) {
    // Taken all the same: a caller that sleeps until something completes must not sleep for ever.
    const PeerRegion* region = context_->peer_regions.Find(link_, pending.op.remote);
    if (region != nullptr && region->state == PeerRegion::State::kWaiting) return false;
  }
  pending.checked = true;
  pending.code = Check(pending);
  return true;
}

void Sender::EnterScope(Pending& pending) {
  if (pending.scoped || pending.op.kind == OpKind::kRead || pending.op.grant.slot >= kGrantSlots) return;
  pending.scoped = true;
  const GrantName& grant = pending.op.grant;
  Scope& scope = scopes_[grant.slot];
  if (!scope.open || scope.grant != grant.id || pending.op.first) {
    scope = Scope{.grant = grant.id, .number = scope.number + 1, .open = true};
  }
  pending.scope = scope.number;
}

Sender::Step Sender::StepFront(Budget& budget) {
  Pending& front = At(next_);
  if (!Begin(front)) return Step::kStalled;
  EnterScope(front);
  const bool ring_busy = head_ != next_;
  if (front.code != Code::kOk) return ring_busy ? Step::kStalled : Refuse(front, front.code);
  if (front.moved) return Conclude(front);
  if (front.op.kind != OpKind::kSignal) return StepPath(front, budget);
  if (ring_busy) return Step::kStalled;
  return outbox_->GrantOpen(front.op.grant) ? Conclude(front) : Refuse(front, Code::kFenced);
}

Sender::Step Sender::StepPath(Pending& pending, Budget& budget) {
  PeerRegion* region = context_->peer_regions.Find(link_, pending.op.remote);
  if (region == nullptr) pending.code = Code::kInvalidArgument;  // Released with operations in flight.
  const bool ring_busy = head_ != next_;
  if (pending.device && region != nullptr && pending.op.length > 0)
    return StepDevice(pending, *region, budget);
  const Path path = region == nullptr ? Path::kMapped : PathOf(pending.op, *region);
  if (path == Path::kRing && pending.op.length > 0) return StepRing(pending, *region, budget);
  if (ring_busy) return Step::kStalled;
  if (region == nullptr) return Refuse(pending, pending.code);
  if (pending.op.length == 0) return Touch(pending, *region);
  return path == Path::kMapped ? Move(pending, *region, budget) : CopyBatch(budget);
}

Sender::Path Sender::PathOf(const Op& op, const PeerRegion& region) const {
  if (region.mapping != nullptr) return Path::kMapped;
  const bool copy = op.kind == OpKind::kRead ? paths_->copy_reads : paths_->copy_writes;
  return copy ? Path::kCopy : Path::kRing;
}

Code Sender::Admitted(const Op& op, const PeerRegion& region) const {
  const GrantName grant = op.kind == OpKind::kRead ? GrantName{} : op.grant;
  if (!outbox_->GrantOpen(grant)) return grant.slot == 0 ? Code::kUnavailable : Code::kFenced;
  return outbox_->Live(region.name) ? Code::kOk : Code::kPermission;
}

std::byte* Sender::LocalAt(const Pending& pending, uint64_t size) {
  // Looked up for each piece: it may have been deregistered, and its memory freed, since the last.
  const LocalRegion* local = context_->regions.Find(pending.op.local);
  if (local == nullptr) return nullptr;
  const uint64_t offset = pending.op.local_offset + pending.done;
  if (offset > local->length || size > local->length - offset) return nullptr;
  return local->address + offset;
}

Sender::Step Sender::Conclude(Pending& pending) {
  pending.moved = true;
  if (!pending.op.has_signal) {
    Complete(Code::kOk);
    return Step::kDone;
  }
  Scope& scope = scopes_[pending.op.grant.slot];
  if (scope.failure != Code::kOk) return Refuse(pending, scope.failure);
  if (!outbox_->HasSpace()) return Step::kStalled;
  outbox_->Push(SignalOf(pending.op.signal));
  scope.open = false;
  Complete(Code::kOk);
  return Step::kDone;
}

void Sender::Complete(Code code) {
  context_->events.Push(Completion{.link = link_, .cookie = At(head_).op.cookie, .code = code});
  if (head_++ == next_) ++next_;
}

Sender::Step Sender::Refuse(Pending& pending, Code code) {
  NoteFailure(pending, code);
  if (pending.scoped && pending.op.has_signal) scopes_[pending.op.grant.slot].open = false;
  Complete(code);
  return Step::kDone;
}

void Sender::NoteFailure(const Pending& pending, Code code) {
  if (!pending.scoped) return;
  Scope& scope = scopes_[pending.op.grant.slot];
  if (scope.open && scope.number == pending.scope) scope.failure = code;
}

void Sender::Fail(Code code) {
  if (failed_ == Code::kOk) failed_ = code;
  Settle();
}

bool Sender::Settle() {
  if (failed_ == Code::kOk) return false;
  const uint64_t before = head_;
  for (; head_ != tail_; ++head_) {
    const Pending& pending = At(head_);
    if (pending.engine != nullptr && !pending.engine->Over(pending.ticket)) break;
    if (pending.path == Path::kStaged && !devices_.engines.idle()) break;
    context_->events.Push(Completion{.link = link_, .cookie = pending.op.cookie, .code = failed_});
  }
  next_ = std::max(next_, head_);
  return head_ != before;
}

}  // namespace weightcast::transport::shm
