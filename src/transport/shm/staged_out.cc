#include "transport/shm/staged_out.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "trace/metrics.h"

namespace weightcast::transport::shm {
namespace {

trace::Counter& StagedBytes() {
  static trace::Counter& counter = trace::CounterNamed("gpu.staged_bytes");
  return counter;
}

uint64_t RoundUp(uint64_t position, uint64_t unit) { return (position + unit - 1) / unit * unit; }

}  // namespace

StagedOut::StagedOut(Context& context, Outbox& outbox, device::Engines& engines, Channel& channel)
    : context_(&context), outbox_(&outbox), engines_(&engines), channel_(&channel) {
  StagedBytes();  // Looked up here: finding it takes a lock.
}

StagedOut::State StagedOut::Ready(const device::Device* device) {
  if (!asked_) Ask();
  if (failure_ != Code::kOk) return State::kFailed;
  if (ring_ == nullptr) return State::kWaits;
  if (device == nullptr) return State::kReady;
  const auto pin = ring_->PinFor(*device);
  if (pin == StageRing::Pin::kRefused) failure_ = Code::kExhausted;
  return pin == StageRing::Pin::kPinned    ? State::kReady
         : pin == StageRing::Pin::kRefused ? State::kFailed
                                           : State::kWaits;
}

void StagedOut::Ask() {
  DeviceSide* const side = context_->devices();
  budgeted_ = side == nullptr ? 0 : side->stage_budget().Take(kLongestStage);
  asked_ = side == nullptr ? kLongestStage : budgeted_;
  if (*asked_ == 0) {
    WarnOfBudget(channel_->PeerName());
    failure_ = Code::kExhausted;
    return;
  }
  // A failure of the socket is told by its hang-up.
  (void)channel_->Send(Encode(WantStage{.most = *asked_}));
}

Status StagedOut::OnStage(const StageReply& reply, std::span<const UniqueFd> fds) {
  if (!asked_ || ring_ != nullptr || failure_ != Code::kOk) {
    return {Code::kProtocol, "it sent a staging ring that was not asked for"};
  }
  const uint64_t budgeted = std::exchange(budgeted_, 0);
  const auto give_back = [&](uint64_t bytes) {
    if (budgeted > 0) context_->devices()->stage_budget().Give(bytes);
  };
  if (reply.code != Code::kOk) {
    failure_ = reply.code;
    give_back(budgeted);
    return Status::Ok();
  }
  if (reply.length > *asked_ || fds.size() != 1) {
    give_back(budgeted);
    return {Code::kProtocol, "it sent a staging ring without its descriptor, or longer than was asked for"};
  }
  auto mapping = MapPeer(fds[0].get(), 0, reply.length, /*writable=*/true);
  give_back(mapping.ok() ? budgeted - reply.length : budgeted);
  WC_RETURN_IF_ERROR(mapping.status());
  ring_ = std::make_unique<StageRing>(*context_, std::move(mapping).value(), budgeted > 0 ? reply.length : 0,
                                      channel_->PeerName());
  return Status::Ok();
}

uint64_t StagedOut::Most(const device::Device* device) const {
  const uint64_t most = StagedPieceOf(ring_->length());
  return device == nullptr ? std::min(kHostPiece, most) : most;
}

/// A run of `size` bytes in the ring.
std::optional<uint64_t> StagedOut::Reserve(uint64_t size) {
  const uint64_t taken = outbox_->shared().staged_taken.load(std::memory_order_acquire);
  if (taken - seen_ > next_ - seen_) {  // Backwards, or ahead of what was written.
    broken_ = true;
    return std::nullopt;
  }
  seen_ = taken;
  uint64_t position = RoundUp(next_, kAlignment);
  if (position % ring_->length() + size > ring_->length()) position = RoundUp(position, ring_->length());
  if (position + size - seen_ > ring_->length()) return std::nullopt;
  return position;
}

std::optional<uint64_t> StagedOut::Bring(const device::Device* device, const std::byte* from, uint64_t size) {
  if (!HasRoom()) return std::nullopt;
  const auto position = Reserve(size);
  if (!position) return std::nullopt;
  std::byte* const to = ring_->At(*position);
  device::Engine* const engine = device == nullptr ? nullptr : &engines_->Of(*device);
  uint64_t ticket = 0;
  if (engine != nullptr) {
    const auto given = batch_.Add(*engine, {.to = to, .from = from, .length = size}, Most(device));
    if (!given) return std::nullopt;
    ticket = *given;
  } else {
    std::memcpy(to, from, size);
  }
  next_ = *position + size;
  Piece& piece = Push();
  piece.engine = engine;
  piece.ticket = ticket;
  StagedBytes().Add(size);
  return position;
}

bool StagedOut::Flush() {
  batch_.Submit();
  bool any = false;
  while (!pieces_.empty() && outbox_->HasSpace(2)) {
    const Piece& oldest = pieces_.front();
    if (oldest.engine != nullptr && !oldest.engine->Over(oldest.ticket)) break;
    if (oldest.engine != nullptr && !oldest.engine->Arrived(oldest.ticket)) break;  // The link goes down.
    outbox_->Push(oldest.record);
    if (oldest.has_signal) outbox_->Push(oldest.signal);
    pieces_.Pop();
    any = true;
  }
  return any;
}

}  // namespace weightcast::transport::shm
