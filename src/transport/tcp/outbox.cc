#include "transport/tcp/outbox.h"

namespace weightcast::transport::tcp {
namespace {
/// Sent to one lane before others have their turn, also when its socket takes more.
constexpr uint64_t kSendBudget = 2U << 20;
}  // namespace

SendBatch::Outcome Outbox::Flush(int socket, bool& moved) {
  for (uint64_t sent = 0; sent < kSendBudget;) {
    if (batch_.empty()) Fill();
    if (batch_.empty()) return SendBatch::Outcome::kSent;
    const uint64_t due = batch_.bytes();
    sent += due;
    const auto outcome = batch_.Send(socket, /*alone=*/operations_.few() && !replies_.reading());
    moved |= batch_.bytes() < due;
    if (outcome != SendBatch::Outcome::kSent) return outcome;
  }
  return SendBatch::Outcome::kBlocked;
}

void Outbox::Fill() {
  if (stage_.in_use()) {
    stage_.Release();  // The batch is empty: the socket has it all.
    LoadAhead();
    if (operations_.in_payload() && !operations_.FillPayload(batch_)) return;
  }
  replies_.Fill(batch_);
  // In turn, so that neither own operations nor the peer's reads starve the others.
  for (bool more = true; more && !batch_.full();) {
    more = operations_.Fill(batch_);
    if (operations_.in_payload()) return;
    if (!batch_.full()) more |= replies_.FillRead(batch_);
  }
}

/// Begins copies of what will be sent next. Operations and the peer's reads take turns, but an operation is
/// loaded whole before anything else: nothing can go between its bytes.
void Outbox::LoadAhead() {
  for (bool any = true; any;) {
    any = operations_.Load();
    if (!operations_.loading()) any |= replies_.Load();
  }
}

void Outbox::Forget(const LocalRegion& region) {
  replies_.Forget(region);
  batch_.Forget(region);
}

}  // namespace weightcast::transport::tcp
