#include "transport/shm/send_queue.h"

#include <algorithm>

#include "transport/region_table.h"

namespace weightcast::transport::shm {

size_t SendQueue::Take(std::span<const Op> ops) {
  size_t taken = 0;
  for (const Op& op : ops) {
    if (tail_ - head_ == kMost || context_->events.full()) break;
    At(tail_++) = Pending{.op = op};
    ++taken;
  }
  return taken;
}

Code SendQueue::Check(Pending& pending) const {
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
  if (!InBounds(op.remote_offset, op.length, region->length) ||
      !InBounds(op.local_offset, op.length, local->length)) {
    return Code::kOutOfBounds;
  }
  const Access access = region->key.access;
  const bool may = op.kind == OpKind::kRead ? PeersRead(access) : PeersWrite(access, op.grant.slot != 0);
  return may ? Code::kOk : Code::kPermission;
}

bool SendQueue::Begin(Pending& pending) {
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

void SendQueue::EnterScope(Pending& pending) {
  if (pending.scoped || pending.op.kind == OpKind::kRead || pending.op.grant.slot >= kGrantSlots) return;
  pending.scoped = true;
  const GrantName& grant = pending.op.grant;
  Scope& scope = scopes_[grant.slot];
  if (!scope.open || scope.grant != grant.id || pending.op.first) {
    scope = Scope{.grant = grant.id, .number = scope.number + 1, .open = true};
  }
  pending.scope = scope.number;
}

Code SendQueue::Admitted(const Op& op, const PeerRegion& region) const {
  const GrantName grant = op.kind == OpKind::kRead ? GrantName{} : op.grant;
  if (!outbox_->GrantOpen(grant)) return grant.slot == 0 ? Code::kUnavailable : Code::kFenced;
  return outbox_->Live(region.name) ? Code::kOk : Code::kPermission;
}

std::byte* SendQueue::LocalAt(const Pending& pending, uint64_t size) {
  // Looked up for each piece: it may have been deregistered, and its memory freed, since the last.
  const LocalRegion* local = context_->regions.Find(pending.op.local);
  if (local == nullptr) return nullptr;
  const uint64_t offset = pending.op.local_offset + pending.done;
  if (!InBounds(offset, size, local->length)) return nullptr;
  return local->address + offset;
}

SendQueue::Step SendQueue::Conclude(Pending& pending) {
  pending.moved = true;
  if (!pending.op.has_signal) {
    Complete(Code::kOk);
    return Step::kDone;
  }
  Scope& scope = ScopeOf(pending);
  if (scope.failure != Code::kOk) return Refuse(pending, scope.failure);
  if (!outbox_->HasSpace()) return Step::kStalled;
  outbox_->Push(SignalOf(pending.op.signal));
  scope.open = false;
  Complete(Code::kOk);
  return Step::kDone;
}

void SendQueue::Complete(Code code) {
  context_->events.Push(Completion{.link = link_, .cookie = At(head_).op.cookie, .code = code});
  if (head_++ == next_) ++next_;
}

SendQueue::Step SendQueue::Refuse(Pending& pending, Code code) {
  NoteFailure(pending, code);
  if (pending.scoped && pending.op.has_signal) ScopeOf(pending).open = false;
  Complete(code);
  return Step::kDone;
}

void SendQueue::NoteFailure(const Pending& pending, Code code) {
  if (!pending.scoped) return;
  Scope& scope = ScopeOf(pending);
  if (scope.open && scope.number == pending.scope) scope.failure = code;
}

void SendQueue::Fail(Code code) {
  if (failed_ == Code::kOk) failed_ = code;
  Settle();
}

bool SendQueue::Settle() {
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
