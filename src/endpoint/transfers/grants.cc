#include "endpoint/transfers/grants.h"

#include <algorithm>
#include <span>

#include "base/random.h"
#include "base/strings.h"
#include "endpoint/transfers/chunks.h"

namespace weightcast::endpoint {
namespace {

using transport::GrantName;
using transport::Signal;

/// What a peer can make us keep for one grant: bits for 134 million chunks.
constexpr uint64_t kMaxMemory = 16U << 20;

}  // namespace

GrantProgress Grants::Grant::progress() const {
  return {.transfers_arrived = arrived->transfers.load(std::memory_order_acquire),
          .transfers_expected = options.transfers,
          .chunks_arrived = chunks_arrived.load(std::memory_order_relaxed)};
}

Grants::Grant* Grants::Find(const GrantName& name) const {
  if (name.slot >= slots_.size()) return nullptr;
  Grant* grant = slots_[name.slot].get();
  return grant != nullptr && grant->name == name ? grant : nullptr;
}

Result<GrantName> Grants::Reserve(GrantOptions options) {
  if (closed_) return Status(Code::kUnavailable, "the connection is closed; connect again");
  if (options.transfers > SignalRange::kMostTransfers) {
    return Error(Code::kInvalidArgument, "a grant of ", options.transfers,
                 " transfers was asked for; open several of at most ", SignalRange::kMostTransfers);
  }
  // In turn, so that a slot rests after its use.
  for (uint32_t i = 0; i < transport::kGrantSlots; ++i) {
    last_slot_ = last_slot_ % (transport::kGrantSlots - 1) + 1;
    if (slots_[last_slot_] != nullptr) continue;
    auto grant = std::make_unique<Grant>();
    grant->name = {last_slot_, RandomId()};  // Nobody guesses it, and none comes twice.
    grant->transfers.resize(options.transfers);
    grant->options = std::move(options);
    const std::lock_guard lock(mutex_);
    slots_[last_slot_] = std::move(grant);
    return slots_[last_slot_]->name;
  }
  return Error(Code::kExhausted, "all ", transport::kGrantSlots - 1,
               " grants of this connection are open; revoke some first");
}

void Grants::Free(uint32_t slot) {
  std::unique_ptr<Grant> gone;
  const std::lock_guard lock(mutex_);
  gone = std::move(slots_[slot]);
  gone->arrived->waited.Set(Arrived::kGone);
}

void Grants::Drop(const GrantName& name) {
  if (Find(name) != nullptr) Free(name.slot);
}

/// Makes room for the transfer's chunks and checks what the peer says of them.
Status Grants::Admit(Grant& grant, const Signal& signal) {
  const auto range = SignalRange::Of(signal.transfer);
  const auto wrong = [&](auto... what) {
    return Error(Code::kProtocol, "it signalled chunk ", signal.chunk, " of ", signal.chunks, " of transfer ",
                 range.first, ", but ", what..., "; let it signal what is granted, and run the same release");
  };
  if (range.first + range.count > grant.transfers.size()) {
    return wrong("the grant is for ", grant.transfers.size(), " transfers");
  }
  if (signal.chunk >= signal.chunks || signal.chunks > kMaxChunks) return wrong("there is no such chunk");
  Arrivals& arrivals = grant.transfers[range.first];
  if (arrivals.together == 0) {
    const auto all = std::span(grant.transfers).subspan(range.first, range.count);
    if (!std::ranges::all_of(all, [](const Arrivals& one) { return one.together == 0; }))
      return wrong("these transfers were signalled already as parts of others");
    if (const auto& count = grant.options.chunks) {
      const uint64_t chunks = count(range.first, range.count);
      if (chunks != signal.chunks) return wrong("by the grant they have ", chunks, " chunks");
    }
    const size_t words = (size_t{signal.chunks} + 63) / 64;
    if (grant.memory + words * 8 > kMaxMemory) return wrong("one grant cannot have so many chunks");
    grant.memory += words * 8;
    arrivals.chunks = signal.chunks;
    arrivals.bits.assign(words, 0);
    for (Arrivals& one : all) one.together = Arrivals::kWithAnother;
    arrivals.together = range.count;
  }
  if (arrivals.together != range.count)
    return wrong("it signalled this transfer together with others before");
  if (arrivals.chunks != signal.chunks) return wrong("before it had ", arrivals.chunks, " chunks");
  return Status::Ok();
}

Status Grants::OnSignal(const Signal& signal) {
  Grant* grant = Find(signal.grant);
  if (grant == nullptr || grant->revoking) return Status::Ok();  // Late, not wrong.
  WC_RETURN_IF_ERROR(Admit(*grant, signal));
  const uint32_t first = SignalRange::Of(signal.transfer).first;
  Arrivals& arrivals = grant->transfers[first];
  uint64_t& word = arrivals.bits[signal.chunk / 64];
  const uint64_t bit = uint64_t{1} << (signal.chunk % 64);
  if ((word & bit) != 0) return Status::Ok();
  word |= bit;
  ++arrivals.arrived;
  grant->chunks_arrived.fetch_add(1, std::memory_order_relaxed);
  if (const auto& on_chunk = grant->options.on_chunk) {
    callbacks_.Later([on_chunk, first, signal] { on_chunk(first, signal.chunk, signal.checksum); });
  }
  if (arrivals.arrived < arrivals.chunks) return Status::Ok();
  // Release: whoever sees the count sees the bytes.
  const uint32_t before = grant->arrived->transfers.fetch_add(arrivals.together, std::memory_order_release);
  grant->arrived->waited.Set(before + arrivals.together);
  if (const auto& on_transfer = grant->options.on_transfer) {
    callbacks_.Later([on_transfer, first, count = arrivals.together, progress = grant->progress()] {
      for (uint32_t i = 0; i < count; ++i) on_transfer(first + i, progress);
    });
  }
  return Status::Ok();
}

bool Grants::Revoke(const GrantName& name, Callback fenced) {
  Grant* grant = Find(name);
  if (grant == nullptr) {
    if (fenced) callbacks_.Later(std::move(fenced));
    return false;
  }
  if (fenced) grant->fenced.push_back(std::move(fenced));
  grant->arrived->waited.Set(Arrived::kGone);
  return !std::exchange(grant->revoking, true);
}

void Grants::OnRevoked(const GrantName& name) {
  Grant* grant = Find(name);
  if (grant == nullptr || !grant->revoking) return;
  for (auto& fenced : grant->fenced) callbacks_.Later(std::move(fenced));
  Free(name.slot);
}

void Grants::OnEnd() {
  for (const auto& slot : slots_) {
    if (slot != nullptr) slot->arrived->waited.Set(Arrived::kGone);
  }
}

void Grants::OnLinkClosed() {
  closed_ = true;
  for (const auto& slot : slots_) {
    if (slot == nullptr) continue;
    slot->revoking = true;
    const GrantName name = slot->name;
    OnRevoked(name);
  }
}

GrantProgress Grants::ProgressOf(const GrantName& name) const {
  const std::lock_guard lock(mutex_);
  const Grant* grant = Find(name);
  if (grant != nullptr) return grant->progress();
  return {.transfers_arrived = 0, .transfers_expected = UINT32_MAX, .chunks_arrived = 0};
}

std::shared_ptr<Grants::Arrived> Grants::ArrivedOf(const GrantName& name) const {
  const std::lock_guard lock(mutex_);
  const Grant* grant = Find(name);
  return grant == nullptr ? nullptr : grant->arrived;
}

}  // namespace weightcast::endpoint
