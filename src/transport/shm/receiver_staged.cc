#include "transport/shm/receiver.h"

/// What the peer stages: pieces of its writes, and bytes that this side reads.
namespace weightcast::transport::shm {

Status Receiver::OnStagedPut(const PutRecord& record) {
  if (record.slot >= kGrantSlots) return {Code::kProtocol, "it wrote under a grant slot that does not exist"};
  if (puller_ && !puller_->empty())
    return {Code::kProtocol, "it sent a write before earlier copies were answered"};
  if (answers_.size() + staging_->in.puts() >= kMostAnswers) {
    return {Code::kProtocol, "it has more writes in flight than the setting window allows"};
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
