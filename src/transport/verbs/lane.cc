#include "transport/verbs/lane.h"

#include <utility>

#include "base/advice.h"
#include "base/strings.h"
#include "transport/verbs/immediate.h"
#include "transport/verbs/link_state.h"

namespace weightcast::transport::verbs {
namespace {

Status Violation(std::string_view what) {
  return BrokeProtocol("the peer", {Code::kProtocol, std::string(what)});
}

}  // namespace

Lane::Lane(LinkState& link, QueueEvents& events, uint32_t queue, uint8_t peer_nic)
    : link_(link),
      events_(events),
      number_(queue),
      peer_nic_(peer_nic),
      operations_(link.terms.id, link.shared.regions, link.shared.events) {}

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
  operations_.EndUnposted();
  if (was_open) link_.shared.events.Push(LaneDown{link_.terms.id, number_ - link_.rails(), reason});
}

void Lane::Close(Code code) {
  DestroyQueue();
  Settle(code, /*peer_alive=*/false);
}

// --- Operations

void Lane::Push(const Op& op) {
  // First: to find it may run what other threads have asked for, and that may break this lane.
  LocalRegion* const local = op.kind == OpKind::kSignal ? nullptr : link_.shared.regions.Find(op.local);
  operations_.Push(op, local);
  if (queue_ == nullptr) operations_.EndUnposted();
}

void Lane::Pump() {
  if (queue_ == nullptr || !open_) return;
  while (Operation* const operation = operations_.ToPost()) {
    if (PumpOne(*operation) == Verdict::kWait) break;
    operations_.OnPosted();
  }
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
  const ImportedRegion* const imported =
      operation.kind == OpKind::kSignal ? nullptr : link_.imports.Find(operation.remote);
  const auto code = Judge(operation, imported);
  if (!code) return Verdict::kWait;  // It asked the peer, which may have moved the imports.
  operations_.BeginSignal(operation);
  if (*code != Code::kOk) {
    operations_.Refuse(operation, *code, queue_->done());
    return Verdict::kPosted;
  }
  while (!operation.posted) {
    if (!queue_->HasRoom() || lengths_.size() + 1 >= kRequests || under_way_ >= kUnderWay)
      return Verdict::kWait;
    const uint64_t length = operation.NextPiece(imported);
    const bool last = operation.begun + length == operation.length;
    if (last && operation.has_signal) {
      if (const Code refused = operations_.EndSignal(operation); refused != Code::kOk) {
        operations_.Refuse(operation, refused, queue_->done());
        return Verdict::kPosted;
      }
    }
    PostPiece(operation, imported, length);
  }
  return Verdict::kPosted;
}

std::optional<Code> Lane::Judge(const Operation& operation, const ImportedRegion* imported) const {
  const Code code = operation.Check(imported, queue_->nic().index(), peer_nic_);
  if (code != Code::kOk) return code;
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

void Lane::PostPiece(Operation& operation, const ImportedRegion* imported, uint64_t length) {
  Queue::Place place{.local = 0, .lkey = 0, .remote = 0, .rkey = 0, .length = static_cast<uint32_t>(length)};
  if (operation.kind != OpKind::kSignal) {
    const LocalRegion& local = *operation.local;
    const uint64_t from = operation.local_offset + operation.begun;
    const uint64_t to = operation.remote_offset + operation.begun;
    place.local = reinterpret_cast<uint64_t>(local.base) + from;
    place.device = local.health != nullptr;
    place.remote = imported->base + to;
    place.rkey = imported->rkeys[imported->parts.IndexOf(peer_nic_, to)];
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

// --- Completions

void Lane::CompleteUpTo(uint32_t sequence) {
  for (uint32_t at = queue_->done(); at != sequence + 1; ++at) {
    under_way_ -= lengths_.front();
    lengths_.Pop();
  }
  queue_->Complete(sequence);
  operations_.CompleteUpTo(queue_->done());
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
  if (code != Code::kUnavailable) operations_.Blame(code);
  events_.OnQueueBroken(number_, {Code::kUnavailable, std::string(reason)});
}

void Lane::OnBroken(Status reason) { events_.OnQueueBroken(number_, std::move(reason)); }

// --- The peer's

void Lane::OnMessage(std::string_view bytes) {
  link_.shared.moved = true;
  const auto message = ParseMessage(bytes);
  if (!message) return events_.OnQueueBroken(number_, Violation("it sent a message of an unknown kind"));
  if (const auto* record = std::get_if<Record>(&*message)) {
    return Arrive(record->lease, record->transfer, record->chunk, record->chunks, record->checksum);
  }
  if (const auto* probe = std::get_if<Probe>(&*message)) return events_.OnQueueProbed(number_, *probe);
  events_.OnQueueBroken(number_, Violation("it sent a control message on a data queue pair"));
}

void Lane::OnImmediate(uint32_t bits) {
  link_.shared.moved = true;
  const auto immediate = ParseImmediate(bits);
  if (immediate) return Arrive(immediate->lease, immediate->transfer, 0, 1, 0);
  events_.OnQueueBroken(number_, Violation(StrCat("it sent an immediate value without a meaning: ", bits)));
}

void Lane::Arrive(Lease lease, uint32_t transfer, uint32_t chunk, uint32_t chunks, uint64_t checksum) {
  const GrantName* const grant = link_.leases.Holder(lease);
  if (grant == nullptr) return;  // It is closed meanwhile.
  link_.shared.events.Push(SignalArrived{
      link_.terms.id,
      {.grant = *grant, .transfer = transfer, .chunk = chunk, .chunks = chunks, .checksum = checksum}});
}

}  // namespace weightcast::transport::verbs
