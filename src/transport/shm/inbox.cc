#include "transport/shm/inbox.h"

#include "base/advice.h"
#include "base/strings.h"

namespace weightcast::transport::shm {

OwnInbox::OwnInbox(SharedPages pages)
    : pages_(std::move(pages)), records_(shared().records, shared().records_taken) {}

Result<OwnInbox> OwnInbox::Create() {
  WC_ASSIGN_OR_RETURN(auto pages, CreateShared(sizeof(Inbox), /*read_only_for_peers=*/false));
  return OwnInbox(std::move(pages));
}

Status OwnInbox::OpenGrant(const GrantName& grant, GrantReach ranges) {
  if (grant.slot == 0 || grant.slot >= kGrantSlots || grant.id == 0) {
    return Error(Code::kInvalidArgument, "a grant has a slot from 1 to ", kGrantSlots - 1,
                 " and an id, not slot ", grant.slot, " and id ", grant.id, kReportBug);
  }
  if (in_use_[grant.slot]) {
    return Error(Code::kExhausted, "grant slot ", grant.slot, " of this peer is in use", kReportBug);
  }
  in_use_[grant.slot] = true;
  open_[grant.slot] = grant.id;
  ranges_[grant.slot] = std::move(ranges);
  ++grants_;
  shared().grant[grant.slot].store(grant.id, std::memory_order_seq_cst);
  return Status::Ok();
}

bool OwnInbox::CloseGrant(const GrantName& grant) {
  if (grant.slot == 0 || !IsOpen(grant.slot, grant.id)) return false;
  open_[grant.slot] = 0;
  --grants_;
  ranges_[grant.slot].reset();
  shared().grant[grant.slot].store(0, std::memory_order_seq_cst);
  return true;
}

void OwnInbox::FreeSlot(uint32_t slot) { in_use_[slot] = false; }

void OwnInbox::Open() {
  standing_ = true;
  shared().grant[0].store(kStandingOpen, std::memory_order_seq_cst);
}

void OwnInbox::CloseAll() {
  standing_ = false;
  open_.fill(0);
  grants_ = 0;
  ranges_.fill(nullptr);
  for (Word& word : shared().grant) word.store(0, std::memory_order_seq_cst);
}

Result<int> OwnInbox::EnsurePayload() {
  if (!has_payload()) {
    WC_ASSIGN_OR_RETURN(payload_, CreateShared(kPayloadBytes, /*read_only_for_peers=*/false));
  }
  return payload_.fd.get();
}

const std::byte* OwnInbox::Payload(uint64_t position, uint64_t length) const {
  // The writer may skip the end of the ring where a piece would not fit in one run.
  const uint64_t skipped = position - payload_taken_;
  if (!has_payload() || length > kPayloadBytes || skipped > kPayloadBytes - length) return nullptr;
  const uint64_t at = position % kPayloadBytes;
  return at > kPayloadBytes - length ? nullptr : payload_.mapping.data() + at;
}

bool OwnInbox::Publish() {
  bool any = records_.Publish();
  if (payload_published_ != payload_taken_) {
    payload_published_ = payload_taken_;
    shared().payload_taken.store(payload_taken_, std::memory_order_seq_cst);
    any = true;
  }
  return any;
}

}  // namespace weightcast::transport::shm
