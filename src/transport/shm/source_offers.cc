#include "transport/shm/source_offers.h"

#include <algorithm>
#include <variant>

#include "base/log.h"
#include "base/strings.h"
#include "device/export.h"

namespace weightcast::transport::shm {

struct SourceOffers::Exported {
  Status status;
  std::vector<device::Handle> handles;
};

SourceOffers::State SourceOffers::Ask(const LocalRegion& region, const DeviceUuid& reader) {
  const RegionId id{region.name.id, region.name.generation};
  const auto [found, first] = states_.try_emplace(Key{id, reader}, State::kAsked);
  if (!first) return found->second;
  if (const auto why_not = WhyNot(*region.device); !why_not.empty()) {
    found->second = State::kCannot;
    WC_LOG(kInfo, "device memory of region ", id.first, " is staged: ", why_not);
  } else {
    OrderOffer(id, reader, region.device);
  }
  return found->second;
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
  const LocalRegion* const region = context_->regions.Find(request.region.first, request.region.second);
  const bool open = region != nullptr && region->device != nullptr && PeersRead(region->access);
  const bool offers = open && WhyNot(*region->device).empty();
  const auto [found, first] = states_.try_emplace(Key{request.region, request.reader}, State::kAsked);
  if (!first && found->second == State::kAsked) return Status::Ok();  // The offer is on its way.
  if (!offers) states_.erase(found);
  if (offers) found->second = State::kAsked;
  OrderOffer(request.region, request.reader, offers ? region->device : nullptr,
             open ? Code::kUnavailable : Code::kPermission);
  return Status::Ok();
}

Status SourceOffers::OnVerdict(const SourceVerdict& verdict) {
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
  return std::ranges::any_of(states_, [id](const auto& state) {
    return state.first.first.first == id && state.second != State::kCannot;
  });
}

std::set<uint32_t> SourceOffers::held() const {
  std::set<uint32_t> ids;
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

Result<bool> SourceOffers::Step() {
  bool any = false;
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
    auto exported = std::make_shared<Exported>();
    auto handles = device::Export(health->context(), *memory, first, count);
    exported->status = handles.status();
    if (handles.ok()) exported->handles = std::move(handles).value();
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
  if (exported_ != nullptr && !exported_->status.ok()) {
    WC_LOG(kWarning, "device memory of region ", front.region.first,
           " is staged: ", exported_->status.message());
    exported_.reset();
    front.device.reset();
    front.announced = false;
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
    front.sent += exported_->handles.size();
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
  SourceHandles message{.exportable = memory.exportable,
                        .count = static_cast<uint8_t>(exported_->handles.size()),
                        .handles = {}};
  std::vector<int> fds;
  for (size_t i = 0; i < exported_->handles.size(); ++i) {
    const device::Handle& handle = exported_->handles[i];
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
