#include "transport/shm/source_offers.h"

#include <algorithm>
#include <variant>

#include "base/log.h"
#include "base/strings.h"
#include "device/export.h"

namespace weightcast::transport::shm {

SourceOffers::State SourceOffers::Ask(const LocalRegion& region, const DeviceUuid& reader) {
  const RegionId id{region.name.id, region.name.generation};
  if (const auto known = states_.find(Key{id, reader}); known != states_.end()) return known->second;
  std::string_view why_not = WhyNot(*region.device);
  if (why_not.empty()) {
    const auto way = trials_.Ask(region.device->device, reader);
    if (way == SourceTrials::Way::kTrying) return State::kAsked;
    if (way == SourceTrials::Way::kCannot) why_not = "the peer's device does not read it";
  }
  State& state = states_[Key{id, reader}];
  state = why_not.empty() ? State::kAsked : State::kCannot;
  if (why_not.empty()) {
    OrderOffer(id, reader, region.device);
  } else {
    WC_LOG(kInfo, "device memory of region ", id.first, " is staged: ", why_not);
  }
  return state;
}

/// Why it cannot be offered; empty where it can.
std::string_view SourceOffers::WhyNot(const DeviceRegion& region) const {
  if (same_process_) return "";
  if (region.memory->exportable == device::Exportable::kNo) return region.memory->why_not;
  return RunsOf(region.memory->blocks).size() > kMostRuns ? "pages of too many lengths" : "";
}

void SourceOffers::OrderOffer(RegionId region, const DeviceUuid& reader,
                              std::shared_ptr<const DeviceRegion> device, Code refusal) {
  if (device != nullptr) {
    const auto& health = device->device.worker->health();
    if (std::ranges::find(healths_, health) == healths_.end()) healths_.push_back(health);
  }
  orders_.push_back({.region = region, .reader = reader, .device = std::move(device), .refusal = refusal});
}

Status SourceOffers::OnWant(const WantSource& request) {
  if (wants_.size() >= kMostWants)
    return {Code::kProtocol, "it sent too many requests for device memory at once"};
  AnswerWant(Key{request.region, request.reader});
  return Status::Ok();
}

void SourceOffers::AnswerWant(const Key& key) {
  const auto& [id, reader] = key;
  const LocalRegion* const region = context_->regions.Find(id.first, id.second);
  const bool open = region != nullptr && region->device != nullptr && PeersRead(region->access);
  bool offers = open && WhyNot(*region->device).empty();
  if (offers) {
    const auto way = trials_.Ask(region->device->device, reader);
    if (way == SourceTrials::Way::kTrying) return (void)wants_.insert(key);
    offers = way == SourceTrials::Way::kWorks;
  }
  const auto [found, first] = states_.try_emplace(key, State::kAsked);
  if (!first && found->second == State::kAsked) return;  // The offer is on its way.
  if (!offers) states_.erase(found);
  if (offers) found->second = State::kAsked;
  OrderOffer(id, reader, offers ? region->device : nullptr, open ? Code::kUnavailable : Code::kPermission);
}

/// Offers the next cell, and answers the requests that a trial has held up.
void SourceOffers::StepTrials() {
  if (auto offer = trials_.Step(); offer) OrderOffer(offer->region, offer->reader, std::move(offer->cell));
  for (const Key& key : std::exchange(wants_, {})) AnswerWant(key);
}

Status SourceOffers::OnVerdict(const SourceVerdict& verdict) {
  if (verdict.region.first == kTrialRegion) {
    trials_.OnVerdict(verdict);
    return Status::Ok();
  }
  const auto found = states_.find(Key{verdict.region, verdict.reader});
  if (found == states_.end()) return Status::Ok();  // Dropped meanwhile.
  found->second = verdict.reads ? State::kReads : State::kCannot;
  return Status::Ok();
}

Status SourceOffers::OnDropped(const Dropped& dropped) {
  if (dropped.all) {
    Clear();
  } else {
    std::erase_if(states_, [&](const auto& state) { return state.first.first == dropped.region; });
  }
  return Status::Ok();
}

void SourceOffers::Drop(uint32_t id) {
  std::set<RegionId> regions;
  for (const auto& [key, state] : states_) {
    if (key.first.first == id && state != State::kCannot) regions.insert(key.first);
  }
  for (const RegionId& region : regions)
    orders_.push_back({.region = region, .device = nullptr, .drop = true});
}

bool SourceOffers::Holds(uint32_t id) const {
  if (id == kTrialRegion) return trials_.holds();
  return std::ranges::any_of(states_, [id](const auto& state) {
    return state.first.first.first == id && state.second != State::kCannot;
  });
}

std::set<uint32_t> SourceOffers::held() const {
  std::set<uint32_t> ids;
  if (trials_.holds()) ids.insert(kTrialRegion);
  for (const auto& [key, state] : states_) {
    if (state != State::kCannot) ids.insert(key.first.first);
  }
  return ids;
}

bool SourceOffers::empty() const { return held().empty(); }

Status SourceOffers::failure() const {
  for (const auto& health : healths_) WC_RETURN_IF_ERROR(health->failure());
  return Status::Ok();
}

size_t SourceOffers::BlocksOf(const Order& order) const {
  return order.device == nullptr || same_process_ ? 0 : order.device->memory->blocks.size();
}

void SourceOffers::Clear() {
  states_.clear();
  orders_.clear();
  wants_.clear();
  trials_.Clear();
}

Result<bool> SourceOffers::Step() {
  bool any = false;
  StepTrials();
  while (!orders_.empty() && !exporting_ && !channel_->congested() && channel_->valid()) {
    Order& front = orders_.front();
    if (exported_ == nullptr && front.sent < BlocksOf(front)) {
      ExportNext(front);
      break;
    }
    any = true;
    WC_RETURN_IF_ERROR(SendFront());
  }
  return any;
}

/// Descriptors are made only as they can be sent.
void SourceOffers::ExportNext(const Order& order) {
  exporting_ = true;
  const auto& memory = order.device->memory;
  const size_t count = std::min(HandlesPerMessage(memory->exportable), memory->blocks.size() - order.sent);
  const auto& worker = order.device->device.worker;
  worker->Run([health = worker->health(), memory, first = order.sent, count,
               reports = context_->devices()->reports(), alive = std::weak_ptr(alive_), this] {
    auto exported = std::make_shared<Exported>(device::Export(health->context(), *memory, first, count));
    reports->Leave([alive, this, exported] {
      if (!alive.expired()) OnExported(exported);
    });
  });
}

void SourceOffers::OnExported(std::shared_ptr<Exported> exported) {
  exporting_ = false;
  if (orders_.empty()) return;  // The peer has ended meanwhile.
  exported_ = std::move(exported);
}

Status SourceOffers::SendFront() {
  Order& front = orders_.front();
  if (front.drop) {
    const std::string message = Encode(shm::Drop{.region = front.region});
    orders_.pop_front();
    return channel_->Send(message);
  }
  if (exported_ != nullptr && !exported_->ok()) {
    WC_LOG(kWarning, "device memory goes to the peer (", channel_->PeerName(),
           ") through host memory, which is slower: ", exported_->status().message());
    exported_.reset();
    front.device.reset();
    front.announced = false;
    if (front.region.first == kTrialRegion) trials_.Fail();
    if (const auto found = states_.find(Key{front.region, front.reader}); found != states_.end()) {
      found->second = State::kCannot;
    }
  }
  if (!front.announced) {
    WC_RETURN_IF_ERROR(Announce(front));
    front.announced = true;
  }
  if (exported_ != nullptr) {
    WC_RETURN_IF_ERROR(SendHandles(front));
    front.sent += (*exported_)->size();
    exported_.reset();
  }
  if (front.sent == BlocksOf(front)) orders_.pop_front();
  return Status::Ok();
}

Status SourceOffers::Announce(Order& order) {
  SourceOffer offer;
  offer.region = order.region;
  offer.reader = order.reader;
  offer.code = order.refusal;
  if (order.device != nullptr) {
    const DescribedMemory& memory = order.device->memory->memory;
    offer.code = Code::kOk;
    offer.exportable = order.device->memory->exportable;
    offer.device = memory.device;
    offer.process = device::ProcessName();
    offer.identity = memory.allocation.identity;
    offer.address = reinterpret_cast<uint64_t>(memory.allocation.base);
    offer.allocation = memory.allocation.length;
    offer.offset = order.device->offset();
    offer.length = memory.length;
    offer.own = same_process_;
    offer.blocks = RunsOf(order.device->memory->blocks);
    if (same_process_) offer.blocks = {{.count = 1, .length = memory.allocation.length}};
  }
  return channel_->Send(Encode(offer));
}

Status SourceOffers::SendHandles(const Order& order) {
  const device::DeviceMemory& memory = *order.device->memory;
  SourceHandles message{
      .exportable = memory.exportable, .count = static_cast<uint8_t>((*exported_)->size()), .handles = {}};
  std::vector<int> fds;
  for (const device::Handle& handle : **exported_) {
    if (const auto* fd = std::get_if<UniqueFd>(&handle)) {
      fds.push_back(fd->get());
    } else if (const auto* legacy = std::get_if<device::LegacyHandle>(&handle)) {
      message.handles.push_back(legacy->bytes);
    } else {
      message.handles.push_back(std::get<device::FabricHandle>(handle).bytes);
    }
  }
  return channel_->Send(Encode(message), fds);
}

}  // namespace weightcast::transport::shm
