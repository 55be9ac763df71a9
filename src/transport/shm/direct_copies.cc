#include "transport/shm/direct_copies.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "transport/shm/copy.h"

namespace weightcast::transport::shm {

DirectCopies::Path DirectCopies::PathOf(const Op& op, const PeerRegion& region) const {
  if (region.mapping != nullptr) return Path::kMapped;
  const bool copy = op.kind == OpKind::kRead ? paths_->copy_reads : paths_->copy_writes;
  return copy ? Path::kCopy : Path::kRing;
}

/// Nothing to move, but the grant and the region must be there all the same.
DirectCopies::Step DirectCopies::Touch(Pending& pending, const PeerRegion& region) {
  const Code code = queue_.Admitted(pending.op, region);
  return code == Code::kOk ? queue_.Conclude(pending) : queue_.Refuse(pending, code);
}

DirectCopies::Step DirectCopies::Move(Pending& pending, PeerRegion& region, Budget& budget) {
  const Op& op = pending.op;
  const uint64_t size = std::min(op.length - pending.done, kPieceBytes);
  if (size > budget.bytes) return Step::kSpent;
  std::byte* const here = queue_.LocalAt(pending, size);
  if (here == nullptr) return queue_.Refuse(pending, Code::kInvalidArgument);
  const uint64_t offset = op.remote_offset + pending.done;
  if (const Status present = region.mapping->Prepare(offset, size); !present.ok()) {
    WC_LOG_LIMITED(kError, "shm: ", present.message());
    return queue_.Refuse(pending, Code::kExhausted);
  }
  std::byte* const there = region.mapping->data() + offset;

  const bool write = op.kind == OpKind::kWrite;
  std::byte* const to = write ? there : here;
  const std::byte* const from = write ? here : there;
  const bool large = size >= kLargeCopy;
  const bool uncached = large && region.mapping->Uncached(offset + size, context_->copied);

  outbox_->Enter();
  const Code code = queue_.Admitted(op, region);
  if (code == Code::kOk) uncached ? CopyUncached(to, from, size) : (void)std::memcpy(to, from, size);
  outbox_->Leave();

  if (code != Code::kOk) return queue_.Refuse(pending, code);
  pending.done += size;
  budget.bytes -= size;
  context_->copied += size;
  return pending.done < op.length ? Step::kDone : queue_.Conclude(pending);
}

DirectCopies::Step DirectCopies::CopyBatch(Budget& budget) {
  std::array<iovec, kBatch> local;
  std::array<iovec, kBatch> remote;
  Pending& front = queue_.At(queue_.next());
  if (budget.bytes < std::min(front.op.length - front.done, kPieceBytes)) return Step::kSpent;
  const bool write = front.op.kind == OpKind::kWrite;
  CrossCopy::Outcome outcome;
  outbox_->Enter();
  const size_t count = Gather(std::min(budget.bytes, kPieceBytes), local, remote);
  if (count > 0) {
    const auto from = std::span(local).first(count);
    const auto to = std::span(remote).first(count);
    outcome = write ? paths_->copy.Write(from, to) : paths_->copy.Read(from, to);
  }
  outbox_->Leave();
  if (count == 0) return queue_.Refuse(front, front.code);
  if (outcome.error != 0) return OnCopyError(outcome.error);
  budget.bytes -= outcome.bytes;
  return OnCopied(std::span(local).first(count), outcome.bytes);
}

/// Pieces of the front operation and of those behind it that go the same way. None: the front
/// operation cannot go on, and its `code` says why.
size_t DirectCopies::Gather(uint64_t most_bytes, std::span<iovec> local, std::span<iovec> remote) {
  const OpKind kind = queue_.At(queue_.next()).op.kind;
  size_t count = 0;
  for (; count < local.size() && queue_.next() + count < queue_.tail(); ++count) {
    Pending& pending = queue_.At(queue_.next() + count);
    const Op& op = pending.op;
    if (op.kind != kind || op.length == 0 || pending.moved || !queue_.Begin(pending)) break;
    if (pending.code != Code::kOk) break;
    const PeerRegion* region = context_->peer_regions.Find(link_, op.remote);
    if (region == nullptr || pending.device || PathOf(op, *region) != Path::kCopy) break;
    const uint64_t size = std::min(op.length - pending.done, most_bytes);
    std::byte* const here = queue_.LocalAt(pending, size);
    pending.code = here == nullptr ? Code::kInvalidArgument : queue_.Admitted(op, *region);
    if (pending.code != Code::kOk || size == 0) break;
    local[count] = {.iov_base = here, .iov_len = size};
    const uint64_t there = region->key.address + op.remote_offset + pending.done;
    remote[count] = {.iov_base = reinterpret_cast<void*>(there), .iov_len = size};
    most_bytes -= size;
  }
  return count;
}

DirectCopies::Step DirectCopies::OnCopied(std::span<const iovec> local, uint64_t copied) {
  for (size_t i = 0; i < local.size(); ++i) {
    Pending& pending = queue_.At(queue_.next() + i);
    const uint64_t size = std::min<uint64_t>(local[i].iov_len, copied);
    pending.done += size;
    copied -= size;
    if (pending.done == pending.op.length) pending.moved = true;
  }
  // What could not be concluded stays moved: its signal waits for room.
  Pending& front = queue_.At(queue_.next());
  return front.moved ? queue_.Conclude(front) : Step::kDone;
}

DirectCopies::Step DirectCopies::OnCopyError(int error) {
  // Its death is told by its descriptor, soon.
  if (error == ESRCH) return Step::kStalled;
  Pending& front = queue_.At(queue_.next());
  const Code code = CrossCopy::CodeOf(error);
  if (code != Code::kUnavailable) return queue_.Refuse(front, code);
  // The ring needs no permission.
  paths_->Refuse(front.op.kind == OpKind::kRead ? paths_->copy_reads : paths_->copy_writes);
  return Step::kDone;
}

}  // namespace weightcast::transport::shm
