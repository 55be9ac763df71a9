#include "transport/shm/receiver.h"

#include <algorithm>
#include <cstring>

#include "transport/shm/peer_rights.h"

namespace weightcast::transport::shm {
namespace {

Status Broken(std::string_view what) { return {Code::kProtocol, std::string(what)}; }

}  // namespace

Receiver::Receiver(LinkId link, const PullerParts& parts, Sender& sender)
    : link_(link),
      parts_(parts),
      context_(&parts.context),
      inbox_(&parts.inbox),
      outbox_(&parts.outbox),
      sender_(&sender),
      staging_(&parts.staging),
      staged_reads_(parts.context, parts.inbox, parts.staging.out) {}

Status Receiver::Drain(Budget& budget, bool& any) {
  RecordBody body;
  Status status;
  uint32_t drained = 0;
  // One inbox full: a peer that fills it as fast as we empty it must not keep us from the others.
  while (status.ok() && budget.bytes > 0 && drained < kRecords && !context_->events.full() &&
         inbox_->records().Pop(body)) {
    any = true;
    status = Handle(body, budget);
    if (++drained % (kRecords / 8) == 0 && inbox_->Publish()) outbox_->Wake(kWakeSpace);
  }
  if (inbox_->Publish()) outbox_->Wake(kWakeSpace);
  return status;
}

void Receiver::DrainAll() {
  RecordBody body;
  ending_ = true;
  Budget budget{.bytes = UINT64_MAX};
  // A peer that is still there and misbehaves cannot keep this going: one inbox full, no more.
  for (uint32_t i = 0; i < kRecords && inbox_->records().Pop(body); ++i) {
    if (!Handle(body, budget).ok()) break;
  }
  if (puller_) puller_->Clear();
  staging_->in.Clear();
}

Status Receiver::Handle(const RecordBody& body, Budget& budget) {
  const RecordKind kind = KindOf(body);
  const bool pull_signal = puller_ && puller_->awaits_signal();
  const bool staged_signal = staging_->in.awaits_signal();
  const bool awaited = put_signal_ || pull_signal || staged_signal;
  if (awaited && kind != RecordKind::kSignal) {
    return Broken("it announced a signal and did not send it");
  }
  switch (kind) {
    case RecordKind::kSignal: {
      const auto record = Unpack<SignalRecord>(body);
      if ((record.after_put != 0) != awaited) return Broken("it sent a signal that no write had announced");
      if (staged_signal) {
        staging_->in.AddSignal(record);
        return Status::Ok();
      }
      if (pull_signal) {
        puller_->AddSignal(record);
        return Status::Ok();
      }
      const bool counts = record.after_put == 0 || put_signal_counts_;
      put_signal_ = false;
      if (counts) OnSignal(record);
      return Status::Ok();
    }
    case RecordKind::kPut:
      return OnPut(Unpack<PutRecord>(body), budget);
    case RecordKind::kAnswer:
      return sender_->OnAnswer(Unpack<AnswerRecord>(body));
    case RecordKind::kGet:
      return OnGet(Unpack<GetRecord>(body));
    case RecordKind::kData:
      return OnData(Unpack<DataRecord>(body), budget);
    case RecordKind::kPull:
      return OnPull(Unpack<PullRecord>(body));
  }
  return Broken("it sent a record of an unknown kind");
}

void Receiver::OnSignal(const SignalRecord& record) {
  if (!inbox_->IsOpen(record.slot, record.grant)) return;
  context_->events.Push(SignalArrived{.link = link_,
                                      .signal = {.grant = {.slot = record.slot, .id = record.grant},
                                                 .transfer = record.transfer,
                                                 .chunk = record.chunk,
                                                 .chunks = record.chunks,
                                                 .checksum = record.checksum}});
}

Status Receiver::OnPut(const PutRecord& record, Budget& budget) {
  if ((record.flags & kInStage) != 0) return OnStagedPut(record);
  const bool last = (record.flags & kLastPiece) != 0;
  const bool abandoned = (record.flags & kAbandoned) != 0;
  if (record.slot >= kGrantSlots) return Broken("it wrote under a grant slot that does not exist");
  if ((puller_ && !puller_->empty()) || staging_->in.puts() > 0) {
    return Broken("it sent a write before earlier ones were answered");
  }
  if (answers_.size() >= kMostAnswers)
    return Broken("it has more writes in flight than setting window allows");
  const std::byte* bytes = nullptr;
  if (!abandoned) {
    bytes = inbox_->Payload(record.position, record.length);
    if (bytes == nullptr) return Broken("it wrote outside the payload ring");
  }
  Code& scope_failure = scope_failure_[record.slot];
  if ((record.flags & kNewScope) != 0) scope_failure = Code::kOk;
  // Once refused, the rest of an operation is refused too: it counts as one.
  if (put_code_ == Code::kOk) put_code_ = abandoned ? Code::kInvalidArgument : Place(record, bytes);
  if (!abandoned) {
    inbox_->TakePayload(record.position + record.length);
    budget.bytes -= std::min<uint64_t>(budget.bytes, record.length);
  }
  put_signal_counts_ = EndPiece(record.flags, record.slot, record.sequence);
  put_signal_ = last && (record.flags & kSignalled) != 0;
  return Status::Ok();
}

bool Receiver::EndPiece(uint8_t flags, uint16_t slot, uint64_t sequence) {
  Code& scope_failure = scope_failure_[slot];
  if (put_code_ != Code::kOk) scope_failure = put_code_;
  if ((flags & kLastPiece) == 0) return false;
  const bool signalled = (flags & kSignalled) != 0;
  Answer(sequence, signalled ? scope_failure : put_code_);
  put_code_ = Code::kOk;
  return signalled && scope_failure == Code::kOk;
}

Status Receiver::OnPull(const PullRecord& record) {
  if (record.slot >= kGrantSlots || record.source >= kMaxRegions) {
    return Broken("it named a grant slot or a source that does not exist");
  }
  if (staging_->in.puts() > 0) return Broken("it asked for a copy before earlier writes were answered");
  if (ending_) {
    put_signal_ = (record.flags & kSignalled) != 0;
    put_signal_counts_ = false;
    return Status::Ok();
  }
  if (!puller_) puller_.emplace(parts_);
  if (answers_.size() + puller_->size() >= kMostAnswers || !puller_->Add(record)) {
    return Broken("it has more writes in flight than setting window allows");
  }
  return Status::Ok();
}

bool Receiver::RunPulls(Budget& budget) {
  if (!puller_ || puller_->empty()) return false;
  bool any = false;
  std::optional<bool> ended;  // Asked once what is over is known.
  while (!context_->events.full()) {
    const Pull* const pull = puller_->Finished();
    if (pull == nullptr) break;
    // Of a device's copies: they go on when the peer has ended, and its host memory cannot be read then.
    if (!ended && pull->engine != nullptr) ended = puller_->PeerEnded();
    EndPull(*pull, ended.value_or(false));
    puller_->Pop();
    any = true;
  }
  return puller_->Submit(budget) || any;
}

void Receiver::EndPull(const Pull& pull, bool peer_ended) {
  const PullRecord& record = pull.record;
  if ((record.flags & kNewScope) != 0) scope_failure_[record.slot] = Code::kOk;
  if (put_code_ == Code::kOk) {
    const bool abandoned = (record.flags & kAbandoned) != 0;
    put_code_ = abandoned ? Code::kInvalidArgument : puller_->Outcome(pull, peer_ended);
  }
  if (EndPiece(record.flags, record.slot, record.sequence)) OnSignal(pull.signal);
}

Code Receiver::Place(const PutRecord& record, const std::byte* bytes) {
  const LocalRegion* const region = FindHost(record.region, record.generation);
  const Code code = JudgeWrite(*inbox_, record, region);
  if (code == Code::kOk) std::memcpy(region->address + record.offset, bytes, record.length);
  return code;
}

void Receiver::Answer(uint64_t sequence, Code code) {
  if (code == Code::kOk && !answers_.empty()) {
    AnswerRecord& newest = answers_[answers_.tail() - 1];
    if (newest.code == 0) {
      newest.sequence = sequence;
      return;
    }
  }
  answers_.Push() = {.code = static_cast<uint8_t>(code), .sequence = sequence};
}

Status Receiver::OnGet(const GetRecord& record) {
  if ((record.flags & kInStage) != 0) {
    return staged_reads_.Add(record) ? Status::Ok()
                                     : Broken("it has more reads in flight than setting window allows");
  }
  if (gets_.size() >= kMostGets) return Broken("it has more reads in flight than setting window allows");
  gets_.push_back({.get = record});
  return Status::Ok();
}

Status Receiver::OnData(const DataRecord& record, Budget& budget) {
  if ((record.flags & kInStage) != 0) return ending_ ? Status::Ok() : sender_->OnStagedData(record);
  if (record.code != 0) return sender_->OnData(record, nullptr);
  const std::byte* const bytes = inbox_->Payload(record.position, record.length);
  if (bytes == nullptr) return Broken("it sent bytes outside the payload ring");
  WC_RETURN_IF_ERROR(sender_->OnData(record, bytes));
  inbox_->TakePayload(record.position + record.length);
  budget.bytes -= std::min<uint64_t>(budget.bytes, record.length);
  return Status::Ok();
}

bool Receiver::Serve(Budget& budget) {
  bool any = SendAnswers();
  any |= SendData(budget);
  any |= staged_reads_.Run(budget);
  return staging_->out.Flush() || any;
}

bool Receiver::SendAnswers() {
  bool any = false;
  while (!answers_.empty() && outbox_->HasSpace()) {
    outbox_->Push(answers_.front());
    answers_.Pop();
    any = true;
  }
  return any;
}

/// Not one of device memory, whose bytes do not go through the payload ring.
const LocalRegion* Receiver::FindHost(uint32_t id, uint32_t generation) const {
  const LocalRegion* const region = context_->regions.Find(id, generation);
  return region == nullptr || region->device != nullptr ? nullptr : region;
}

bool Receiver::SendData(Budget& budget) {
  bool any = false;
  while (!gets_.empty() && budget.bytes > 0 && outbox_->HasSpace()) {
    Served& served = gets_.front();
    const uint64_t size = std::min(served.get.length - served.done, kDataPiece);
    const LocalRegion* const region = FindHost(served.get.region, served.get.generation);
    DataRecord record{.length = static_cast<uint32_t>(size), .sequence = served.get.sequence};
    const Code code = JudgeRead(*inbox_, served.get, region);
    if (code != Code::kOk) {
      record = {.flags = kLastPiece, .code = static_cast<uint8_t>(code), .sequence = served.get.sequence};
    } else {
      std::byte* const room = outbox_->has_payload() ? outbox_->Reserve(size, record.position) : nullptr;
      if (room == nullptr) break;
      std::memcpy(room, region->address + served.get.offset + served.done, size);
      outbox_->Commit(record.position, size);
      served.done += size;
      budget.bytes -= std::min(budget.bytes, size);
      if (served.done == served.get.length) record.flags = kLastPiece;
    }
    outbox_->Push(record);
    any = true;
    if ((record.flags & kLastPiece) != 0) gets_.pop_front();
  }
  return any;
}

// --- What the peer stages: pieces of its writes, and bytes that this side reads ------------------

Status Receiver::OnStagedPut(const PutRecord& record) {
  if (record.slot >= kGrantSlots) return Broken("it wrote under a grant slot that does not exist");
  if (puller_ && !puller_->empty()) return Broken("it sent a write before earlier copies were answered");
  if (answers_.size() + staging_->in.puts() >= kMostAnswers) {
    return Broken("it has more writes in flight than setting window allows");
  }
  if (!ending_) return staging_->in.AddPut(record);
  put_signal_ = (record.flags & kSignalled) != 0;
  put_signal_counts_ = false;
  return Status::Ok();
}

bool Receiver::RunStaged(Budget& budget) {
  StagedIn& in = staging_->in;
  bool any = in.Place(budget);
  while (!context_->events.full()) {
    const Arrival* const arrival = in.Finished();
    if (arrival == nullptr) break;
    if (arrival->read) {
      sender_->OnStagedPlaced(arrival->record.flags, arrival->Outcome());
    } else {
      EndStagedPut(*arrival);
    }
    in.Pop();
    any = true;
  }
  in.Publish();
  return any;
}

void Receiver::EndStagedPut(const Arrival& arrival) {
  const PutRecord& record = arrival.record;
  if ((record.flags & kNewScope) != 0) scope_failure_[record.slot] = Code::kOk;
  if (put_code_ == Code::kOk) put_code_ = arrival.Outcome();
  if (EndPiece(record.flags, record.slot, record.sequence)) OnSignal(arrival.signal);
}

}  // namespace weightcast::transport::shm
