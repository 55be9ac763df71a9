#include "transport/shm/staged_in.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/log.h"
#include "transport/shm/peer_rights.h"

namespace weightcast::transport::shm {

StagedIn::StagedIn(Context& context, OwnInbox& inbox, Outbox& outbox, device::Engines& engines,
                   Channel& channel)
    : context_(&context), inbox_(&inbox), outbox_(&outbox), engines_(&engines), channel_(&channel) {}

Status StagedIn::OnWantStage(const WantStage& request) {
  if (ring_ != nullptr) return {Code::kProtocol, "it asked for a second staging ring"};
  DeviceSide* const side = context_->devices();
  const uint64_t length = side == nullptr ? request.most : side->stage_budget().Take(request.most);
  if (length == 0) {
    WarnOfBudget(channel_->PeerName());
    return channel_->Send(Encode(StageReply{.code = Code::kExhausted}));
  }
  auto pages = CreateShared(length, /*read_only_for_peers=*/false);
  if (!pages.ok()) {
    if (side != nullptr) side->stage_budget().Give(length);
    WC_LOG(kWarning, "device memory cannot come from the peer (", channel_->PeerName(),
           ") through host memory: ", pages.status().message());
    return channel_->Send(Encode(StageReply{.code = Code::kExhausted}));
  }
  ring_ = std::make_unique<StageRing>(*context_, std::move(pages->mapping), side == nullptr ? 0 : length,
                                      channel_->PeerName());
  return channel_->Send(Encode(StageReply{.length = length}), std::array{pages->fd.get()});
}

/// Whether a piece may lie there: behind the newest, in one run, and not over what was not popped.
bool StagedIn::Locate(uint64_t position, uint64_t length) const {
  if (ring_ == nullptr || length == 0 || length > kStagedPiece) return false;
  const uint64_t free = ring_->length() - (arrived_ - taken_);
  if (length > free || position - arrived_ > free - length) return false;
  return position % ring_->length() <= ring_->length() - length;
}

Status StagedIn::Add(Arrival arrival, bool bytes) {
  if (arrivals_.full()) return Error(Code::kProtocol, "it has more than ", kMost, " staged pieces in flight");
  if (bytes) {
    if (!Locate(arrival.record.position, arrival.record.length)) {
      return {Code::kProtocol, "it wrote outside the staging ring"};
    }
    arrived_ = arrival.record.position + arrival.record.length;
  }
  arrival.end = arrived_;
  if (!arrival.read) ++puts_;
  arrivals_.Push() = arrival;
  return Status::Ok();
}

Status StagedIn::AddPut(const PutRecord& record) {
  Arrival arrival;
  arrival.record = record;
  const bool abandoned = (record.flags & kAbandoned) != 0;
  if (abandoned) arrival.code = Code::kInvalidArgument;
  return Add(arrival, !abandoned);
}

Status StagedIn::AddData(const DataRecord& record, uint32_t local, uint64_t offset) {
  Arrival arrival;
  arrival.record = {.flags = record.flags,
                    .length = record.length,
                    .region = local,
                    .offset = offset,
                    .position = record.position,
                    .sequence = record.sequence};
  arrival.read = true;
  arrival.code = static_cast<Code>(record.code);
  return Add(arrival, record.code == 0);
}

void StagedIn::AddSignal(const SignalRecord& record) {
  Arrival& newest = arrivals_[arrivals_.tail() - 1];
  newest.signal = record;
  newest.has_signal = true;
}

Code StagedIn::Check(const Arrival& arrival, const LocalRegion* region) const {
  const PutRecord& record = arrival.record;
  if (arrival.read) {
    const bool gone = region == nullptr || !InBounds(record.offset, record.length, region->length);
    return gone ? Code::kInvalidArgument : Code::kOk;
  }
  return JudgeWrite(*inbox_, record, region);
}

/// Two copies that are under way must not touch the same bytes.
bool StagedIn::Overlaps(const std::byte* to, uint64_t length) {
  for (uint32_t number = arrivals_.head(); number != next_; ++number) {
    const Arrival& before = arrivals_[number];
    if (before.engine == nullptr || before.engine->Over(before.ticket)) continue;
    if (before.to < to + length && to < before.to + before.record.length) return true;
  }
  return false;
}

StagedIn::Step StagedIn::CopyByDevice(Arrival& arrival, const LocalRegion& region) {
  const PutRecord& record = arrival.record;
  const auto pin = ring_->PinFor(region.device->device);
  if (pin == StageRing::Pin::kWaiting) return Step::kWaits;
  if (pin == StageRing::Pin::kRefused) {
    arrival.code = Code::kExhausted;
    return Step::kDone;
  }
  std::byte* const to = region.address + record.offset;
  if (Overlaps(to, record.length)) return Step::kWaits;
  device::Engine& engine = engines_->Of(region.device->device);
  const auto ticket =
      batch_.Add(engine, {.to = to, .from = ring_->At(record.position), .length = record.length},
                 StagedPieceOf(ring_->length()));
  if (!ticket) return Step::kWaits;
  arrival.ticket = *ticket;
  arrival.to = to;
  arrival.engine = &engine;
  arrival.placed = true;
  return Step::kDone;
}

StagedIn::Step StagedIn::PlaceOne(Arrival& arrival, Budget& budget) {
  if (arrival.code != Code::kOk) return Step::kDone;
  const PutRecord& record = arrival.record;
  const LocalRegion* const region = arrival.read ? context_->regions.Find(record.region)
                                                 : context_->regions.Find(record.region, record.generation);
  arrival.code = Check(arrival, region);
  if (arrival.code != Code::kOk) return Step::kDone;
  if (region->device != nullptr) return CopyByDevice(arrival, *region);
  if (budget.bytes == 0) return Step::kWaits;
  std::memcpy(region->address + record.offset, ring_->At(record.position), record.length);
  budget.bytes -= std::min<uint64_t>(budget.bytes, record.length);
  arrival.placed = true;
  return Step::kDone;
}

bool StagedIn::Place(Budget& budget) {
  bool any = false;
  while (next_ != arrivals_.tail() && PlaceOne(arrivals_[next_], budget) == Step::kDone) {
    ++next_;
    any = true;
  }
  batch_.Submit();
  return any;
}

const Arrival* StagedIn::Finished() {
  if (arrivals_.head() == next_) return nullptr;
  const Arrival& oldest = arrivals_.front();
  return oldest.Over() && !oldest.wants_signal() ? &oldest : nullptr;
}

void StagedIn::Pop() {
  taken_ = arrivals_.front().end;
  if (!arrivals_.front().read) --puts_;
  arrivals_.Pop();
}

void StagedIn::Publish() {
  if (published_ == taken_) return;
  published_ = taken_;
  inbox_->shared().staged_taken.store(taken_, std::memory_order_seq_cst);
  outbox_->Wake(kWakeSpace);
}

void StagedIn::Clear() {
  while (!arrivals_.empty()) arrivals_.Pop();
  next_ = arrivals_.head();
  puts_ = 0;
}

}  // namespace weightcast::transport::shm
