#include "transport/verbs/lane.h"

#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"
#include "transport/verbs/link_state.h"

namespace weightcast::transport::verbs {

Lane::Lane(LinkState& link, QueueEvents& events, uint32_t queue, uint8_t peer_nic)
    : link_(link),
      events_(events),
      number_(queue),
      peer_nic_(peer_nic),
      operations_(kDepth),
      lengths_(kRequests) {}

Lane::~Lane() {
  queue_.reset();
  while (!operations_.empty()) {
    if (LocalRegion* local = operations_.front().local; local != nullptr && !operations_.front().done) {
      link_.shared.regions.Unuse(*local);
    }
    operations_.Pop();
  }
}

// --- Life

void Lane::Begin(std::unique_ptr<Queue> queue, std::optional<Probe> probe) {
  queue_ = std::move(queue);
  queue_->SetOwner(*this);
  probing_ = probe.has_value();
  if (!probe) return;
  queue_->AddMessage(Encode(Message(*probe)));
  lengths_.Push() = 0;
  if (Status posted = queue_->Flush(); !posted.ok()) events_.OnQueueBroken(number_, std::move(posted));
}

void Lane::DestroyQueue() {
  open_ = false;
  if (queue_ != nullptr) queue_->Retire();
  queue_.reset();
  probing_ = false;
  while (!lengths_.empty()) lengths_.Pop();
  under_way_ = 0;
}

void Lane::Break(const Status& reason) {
  const bool was_open = open_;
  DestroyQueue();
  // What was never posted cannot land any more; what was waits for the peer.
  for (uint32_t at = next_to_post_; at != operations_.tail(); ++at) {
    Operation& operation = operations_[at];
    if (!operation.any_posted && !operation.done) Finish(operation, Code::kUnavailable);
  }
  next_to_post_ = operations_.tail();
  RetireDone();
  if (was_open) link_.shared.events.Push(LaneDown{link_.terms.id, number_ - link_.rails(), reason});
}

void Lane::Settle(Code code, bool peer_alive) {
  for (uint32_t at = operations_.head(); at != operations_.tail(); ++at) {
    Operation& operation = operations_[at];
    if (operation.done) continue;
    // A process that dies loses its regions before its queue pairs: then a refusal says nothing.
    const bool refused = operation.code != Code::kOk && peer_alive;
    Finish(operation, refused ? operation.code : code);
  }
  next_to_post_ = operations_.tail();
  RetireDone();
  refusals_ = {};
}

void Lane::Close(Code code) {
  DestroyQueue();
  Settle(code, /*peer_alive=*/false);
}

// --- Operations

void Lane::Push(const Op& op) {
  // First: to find it may run what other threads have asked for, and that may break this lane.
  LocalRegion* const local = op.kind == OpKind::kSignal ? nullptr : link_.shared.regions.Find(op.local);
  Operation& operation = operations_.Push();
  operation = {.kind = op.kind,
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
  if (operation.local != nullptr) ++operation.local->uses;
  if (queue_ != nullptr) return;
  Finish(operation, Code::kUnavailable);
  next_to_post_ = operations_.tail();
  RetireDone();
}

void Lane::Pump() {
  if (queue_ == nullptr || !open_) return;
  while (next_to_post_ != operations_.tail()) {
    if (PumpOne(operations_[next_to_post_]) == Verdict::kWait) break;
    ++next_to_post_;
  }
  RetireDone();
  if (queue_ == nullptr) return;  // Asking about a grant broke the link.
  if (Status posted = queue_->Flush(); !posted.ok()) events_.OnQueueBroken(number_, std::move(posted));
}

Lane::Verdict Lane::PumpOne(Operation& operation) {
  if (operation.local != nullptr && operation.local->health != nullptr && operation.local->health->lost()) {
    link_.GoDown(operation.local->health->failure());
    return Verdict::kWait;  // The link ends.
  }
  if (operation.after != nullptr && !operation.after->Done()) {
    link_.Touch();
    return Verdict::kWait;
  }
  const ImportedRegion* const remote =
      operation.kind == OpKind::kSignal ? nullptr : link_.imports.Find(operation.remote);
  const auto code = Judge(operation, remote);
  if (!code) return Verdict::kWait;  // It asked the peer, which may have moved the imports.
  if (!operation.any_posted && operation.first && operation.kind != OpKind::kRead) {
    refusals_.Begin(operation.has_signal ? operation.signal.grant : operation.grant);
  }
  if (*code != Code::kOk) {
    Refuse(operation, *code);
    return Verdict::kPosted;
  }
  while (!operation.posted) {
    if (!queue_->HasRoom() || lengths_.size() + 1 >= kRequests || under_way_ >= kUnderWay)
      return Verdict::kWait;
    const uint64_t length = NextPiece(operation, remote);
    const bool last = operation.begun + length == operation.length;
    if (last && operation.has_signal) {
      // Of this signal's writes one was refused: it stands for nothing.
      if (const Code refused = refusals_.End(operation.signal.grant); refused != Code::kOk) {
        Refuse(operation, refused);
        return Verdict::kPosted;
      }
    }
    PostPiece(operation, remote, length);
  }
  return Verdict::kPosted;
}

std::optional<Code> Lane::Judge(const Operation& operation, const ImportedRegion* remote) const {
  if (operation.grant.slot >= kGrantSlots ||
      (operation.has_signal && operation.signal.grant.slot >= kGrantSlots) ||
      (operation.kind == OpKind::kRead && operation.has_signal)) {
    return Code::kInvalidArgument;
  }
  if (operation.kind != OpKind::kSignal) {
    if (operation.local == nullptr || remote == nullptr) return Code::kInvalidArgument;
    if (!InBounds(operation.local_offset, operation.length, operation.local->length))
      return Code::kOutOfBounds;
    if (const Code code = JudgeWrite(operation, *remote); code != Code::kOk) return code;
    if (!InBounds(operation.remote_offset, operation.length, remote->length)) return Code::kOutOfBounds;
  }
  for (const GrantName* grant : {&operation.grant, &operation.signal.grant}) {
    const bool matters = grant == &operation.grant ? operation.kind == OpKind::kWrite : operation.has_signal;
    if (!matters) continue;
    switch (link_.grants.Look(*grant)) {
      case PeerGrants::State::kOpen:
        break;
      case PeerGrants::State::kClosed:
        return Code::kFenced;
      case PeerGrants::State::kUnknown:
        link_.AskFor(*grant);
        return std::nullopt;
    }
  }
  return Code::kOk;
}

/// What the owner of the region allows, read included.
Code Lane::JudgeWrite(const Operation& operation, const ImportedRegion& remote) const {
  const LocalRegion& local = *operation.local;
  if (!local.live || local.registered[local.parts.IndexOf(queue_->nic().index(), 0)] == nullptr ||
      remote.parts.IndexOf(peer_nic_, 0) >= remote.rkeys.size()) {
    return Code::kPermission;
  }
  const bool may = operation.kind == OpKind::kRead
                       ? PeersRead(remote.access)
                       : PeersWrite(remote.access, !GrantTable::IsStanding(operation.grant));
  return may ? Code::kOk : Code::kPermission;
}

uint64_t Lane::NextPiece(const Operation& operation, const ImportedRegion* remote) {
  if (operation.kind == OpKind::kSignal) return 0;
  return std::min({operation.length - operation.begun, kLongest,
                   operation.local->parts.Left(operation.local_offset + operation.begun),
                   remote->parts.Left(operation.remote_offset + operation.begun)});
}

void Lane::PostPiece(Operation& operation, const ImportedRegion* remote, uint64_t length) {
  Queue::Place place{.local = 0, .lkey = 0, .remote = 0, .rkey = 0, .length = static_cast<uint32_t>(length)};
  if (operation.kind != OpKind::kSignal) {
    const LocalRegion& local = *operation.local;
    const uint64_t from = operation.local_offset + operation.begun;
    const uint64_t to = operation.remote_offset + operation.begun;
    place.local = reinterpret_cast<uint64_t>(local.base) + from;
    place.device = local.health != nullptr;
    place.remote = remote->base + to;
    place.rkey = remote->rkeys[remote->parts.IndexOf(peer_nic_, to)];
    place.lkey = local.registered[local.parts.IndexOf(queue_->nic().index(), from)]->lkey;
  }
  operation.begun += length;
  operation.any_posted = true;
  operation.posted = operation.begun == operation.length;
  lengths_.Push() = static_cast<uint32_t>(length);
  under_way_ += length;
  if (operation.kind == OpKind::kRead) {
    queue_->AddRead(place);
  } else if (operation.posted && operation.has_signal) {
    PostSignal(operation, place);
  } else {
    queue_->AddWrite(place);
  }
  operation.after_last = queue_->next();
}

void Lane::PostSignal(const Operation& operation, const Queue::Place& place) {
  const Signal& signal = operation.signal;
  const Lease lease = GrantTable::IsStanding(signal.grant) ? Lease{0} : link_.grants.LeaseOf(signal.grant);
  if (FitsImmediate(signal)) return queue_->AddWrite(place, Encode(Immediate{lease, signal.transfer}));
  if (operation.kind != OpKind::kSignal) {
    queue_->AddWrite(place);
    lengths_.Push() = 0;
  }
  queue_->AddMessage(Encode(Message(Record{.lease = lease,
                                           .transfer = signal.transfer,
                                           .chunk = signal.chunk,
                                           .chunks = signal.chunks,
                                           .checksum = signal.checksum})));
}

/// What was posted of it still has to complete.
void Lane::Refuse(Operation& operation, Code code) {
  operation.code = code;
  operation.posted = true;
  if (operation.kind == OpKind::kWrite && !operation.has_signal && operation.grant.slot < kGrantSlots) {
    refusals_.Note(operation.grant, code);
  }
  if (operation.has_signal && operation.signal.grant.slot < kGrantSlots)
    refusals_.End(operation.signal.grant);
  if (!operation.any_posted || static_cast<int32_t>(operation.after_last - queue_->done()) <= 0) {
    Finish(operation, code);
  }
}

void Lane::Finish(Operation& operation, Code code) {
  operation.done = true;
  if (operation.local != nullptr) link_.shared.regions.Unuse(*std::exchange(operation.local, nullptr));
  link_.shared.events.Push(Completion{link_.terms.id, operation.cookie, code});
}

void Lane::RetireDone() {
  while (operations_.head() != next_to_post_ && operations_.front().done) operations_.Pop();
}

// --- Completions

void Lane::CompleteUpTo(uint32_t sequence) {
  for (uint32_t at = queue_->done(); at != sequence + 1; ++at) {
    under_way_ -= lengths_.front();
    lengths_.Pop();
  }
  queue_->Complete(sequence);
  for (uint32_t at = operations_.head(); at != operations_.tail(); ++at) {
    Operation& operation = operations_[at];
    if (operation.done) continue;
    if (!operation.posted || static_cast<int32_t>(operation.after_last - queue_->done()) > 0) break;
    Finish(operation, operation.code);
  }
  RetireDone();
}

void Lane::OnSent(uint32_t sequence) {
  link_.shared.moved = true;
  CompleteUpTo(sequence);
  if (std::exchange(probing_, false)) return events_.OnQueueProven(number_);
  link_.Touch();
}

void Lane::OnSendError(uint32_t sequence, Code code, std::string_view reason) {
  if (!queue_->Fail()) return;
  if (sequence != queue_->done()) CompleteUpTo(sequence - 1);
  if (code != Code::kUnavailable) {
    for (uint32_t at = operations_.head(); at != operations_.tail(); ++at) {
      Operation& operation = operations_[at];
      if (operation.done || !operation.any_posted) continue;
      operation.code = code;  // The first that has not completed is the one.
      break;
    }
  }
  events_.OnQueueBroken(number_, {Code::kUnavailable, std::string(reason)});
}

void Lane::OnBroken(Status reason) { events_.OnQueueBroken(number_, std::move(reason)); }

// --- The peer's

void Lane::OnMessage(std::string_view bytes) {
  link_.shared.moved = true;
  const auto message = ParseMessage(bytes);
  if (!message) return Violation("it sent a message of an unknown kind");
  if (const auto* record = std::get_if<Record>(&*message)) {
    return Arrive(record->lease, record->transfer, record->chunk, record->chunks, record->checksum);
  }
  if (const auto* probe = std::get_if<Probe>(&*message)) return events_.OnQueueProbed(number_, *probe);
  Violation("it sent a control message on a data queue pair");
}

void Lane::OnImmediate(uint32_t bits) {
  link_.shared.moved = true;
  const auto immediate = ParseImmediate(bits);
  if (!immediate) return Violation(StrCat("it sent an immediate value without a meaning: ", bits));
  Arrive(immediate->lease, immediate->transfer, 0, 1, 0);
}

void Lane::Arrive(Lease lease, uint32_t transfer, uint32_t chunk, uint32_t chunks, uint64_t checksum) {
  const GrantName* const grant = link_.leases.Holder(lease);
  if (grant == nullptr) return;  // It is closed meanwhile.
  link_.shared.events.Push(SignalArrived{
      link_.terms.id,
      {.grant = *grant, .transfer = transfer, .chunk = chunk, .chunks = chunks, .checksum = checksum}});
}

void Lane::Violation(std::string_view what) {
  events_.OnQueueBroken(number_, {Code::kProtocol, StrCat("the peer", kBrokeProtocol, what, kSameRelease)});
}

}  // namespace weightcast::transport::verbs
