#include "transport/verbs/operations.h"

#include <algorithm>
#include <utility>

#include "transport/grant_table.h"

namespace weightcast::transport::verbs {
namespace {

/// Of one work request: long enough to cost nothing, short enough to see progress and to be fenced soon.
constexpr uint64_t kLongest = 1U << 20;

}  // namespace

Code Operation::Check(const ImportedRegion* imported, size_t own_nic, size_t peer_nic) const {
  if (grant.slot >= kGrantSlots || (has_signal && signal.grant.slot >= kGrantSlots) ||
      (kind == OpKind::kRead && has_signal)) {
    return Code::kInvalidArgument;
  }
  if (kind == OpKind::kSignal) return Code::kOk;
  if (local == nullptr || imported == nullptr) return Code::kInvalidArgument;
  if (!InBounds(local_offset, length, local->length)) return Code::kOutOfBounds;
  if (!local->live || local->registered[local->parts.IndexOf(own_nic, 0)] == nullptr ||
      imported->parts.IndexOf(peer_nic, 0) >= imported->rkeys.size()) {
    return Code::kPermission;
  }
  const bool may = kind == OpKind::kRead ? PeersRead(imported->access)
                                         : PeersWrite(imported->access, !GrantTable::IsStanding(grant));
  if (!may) return Code::kPermission;
  return InBounds(remote_offset, length, imported->length) ? Code::kOk : Code::kOutOfBounds;
}

uint64_t Operation::NextPiece(const ImportedRegion* imported) const {
  if (kind == OpKind::kSignal) return 0;
  return std::min({length - begun, kLongest, local->parts.Left(local_offset + begun),
                   imported->parts.Left(remote_offset + begun)});
}

Operations::Operations(LinkId link, Regions& regions, EventQueue& events)
    : link_(link), regions_(regions), events_(events) {}

void Operations::Push(const Op& op, LocalRegion* local) {
  ring_.Push() = {.kind = op.kind,
                  .has_signal = op.has_signal || op.kind == OpKind::kSignal,
                  .first = op.first,
                  .local = local,
                  .local_offset = op.local_offset,
                  .remote = op.remote,
                  .remote_offset = op.remote_offset,
                  .length = op.kind == OpKind::kSignal ? 0 : op.length,
                  .grant = op.grant,
                  .signal = op.signal,
                  .cookie = op.cookie,
                  .after = op.after};
  if (local != nullptr) ++local->uses;
}

void Operations::OnPosted() {
  ++to_post_;
  RetireDone();
}

void Operations::BeginSignal(const Operation& operation) {
  if (operation.any_posted || !operation.first || operation.kind == OpKind::kRead) return;
  refusals_.Begin(operation.has_signal ? operation.signal.grant : operation.grant);
}

void Operations::Refuse(Operation& operation, Code code, uint32_t done) {
  operation.code = code;
  operation.posted = true;
  if (operation.kind == OpKind::kWrite && !operation.has_signal && operation.grant.slot < kGrantSlots) {
    refusals_.Note(operation.grant, code);
  }
  if (operation.has_signal && operation.signal.grant.slot < kGrantSlots)
    refusals_.End(operation.signal.grant);
  if (!operation.any_posted || static_cast<int32_t>(operation.after_last - done) <= 0) {
    Finish(operation, code);
  }
}

void Operations::CompleteUpTo(uint32_t done) {
  for (uint32_t at = ring_.head(); at != ring_.tail(); ++at) {
    Operation& operation = ring_[at];
    if (operation.done) continue;
    if (!operation.posted || static_cast<int32_t>(operation.after_last - done) > 0) break;
    Finish(operation, operation.code);
  }
  RetireDone();
}

void Operations::Blame(Code code) {
  for (uint32_t at = ring_.head(); at != ring_.tail(); ++at) {
    Operation& operation = ring_[at];
    if (operation.done || !operation.any_posted) continue;
    operation.code = code;
    return;
  }
}

void Operations::EndUnposted() {
  for (uint32_t at = to_post_; at != ring_.tail(); ++at) {
    Operation& operation = ring_[at];
    if (!operation.any_posted && !operation.done) Finish(operation, Code::kUnavailable);
  }
  to_post_ = ring_.tail();
  RetireDone();
}

void Operations::Settle(Code code, bool peer_alive) {
  for (uint32_t at = ring_.head(); at != ring_.tail(); ++at) {
    Operation& operation = ring_[at];
    if (operation.done) continue;
    // A process that dies loses its regions before its queue pairs: then a refusal says nothing.
    const bool refused = operation.code != Code::kOk && peer_alive;
    Finish(operation, refused ? operation.code : code);
  }
  to_post_ = ring_.tail();
  RetireDone();
  refusals_ = {};
}

void Operations::Finish(Operation& operation, Code code) {
  operation.done = true;
  if (operation.local != nullptr) regions_.Unuse(*std::exchange(operation.local, nullptr));
  events_.Push(Completion{link_, operation.cookie, code});
}

void Operations::RetireDone() {
  while (ring_.head() != to_post_ && ring_.front().done) ring_.Pop();
}

}  // namespace weightcast::transport::verbs
