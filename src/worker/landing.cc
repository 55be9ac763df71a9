#include "worker/landing.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/strings.h"
#include "worker/digests.h"
#include "worker/gather.h"
#include "worker/shards.h"

namespace weightcast::worker {
namespace {

/// Of shards in the spare buffer: a cache line, so that no two shards share one; on a device what its copies
/// are fast with.
constexpr size_t kAlignment = 64;
constexpr size_t kDeviceAlignment = 256;

size_t PaddedBytes(const Shard& shard) {
  const size_t alignment = IsOnDevice(shard) ? kDeviceAlignment : kAlignment;
  return (SpanOf(shard).size() + alignment - 1) / alignment * alignment;
}

bool IsSpare(const Shard& shard) { return !shard.declared && shard.landing == LandingMode::kShadow; }

Status Changed(const Shard& shard) {
  return Error(Code::kCorrupt, "tensor ", shard.tensor.name,
               " changed while it was copied; let nothing else write to it during an update");
}

std::string_view NameOf(LandingMode mode) {
  static constexpr std::string_view kNames[] = {"in_place", "shadow", "loader"};
  return kNames[static_cast<size_t>(mode)];
}

}  // namespace

Result<std::shared_ptr<LandingMemory>> LandingMemory::Register(Endpoint& endpoint, std::vector<Shard> shards,
                                                               LandingMode mode, PartsOfShards parts,
                                                               const Settings& settings) {
  auto memory = std::make_shared<LandingMemory>();
  memory->devices_ = std::make_shared<DeviceMemories>(settings);
  WC_ASSIGN_OR_RETURN(memory->by_key_,
                      CheckShards(shards, Needs::kMemory, StrCat("rank ", endpoint.self().rank)));
  WC_RETURN_IF_ERROR(CheckSettings(shards, settings));
  WC_RETURN_IF_ERROR(CheckPlaces(shards, *memory->devices_));
  for (const Shard& shard : shards) {
    if (shard.declared || shard.strides.empty() || IsDense(BoxOf(shard).size, shard.strides)) continue;
    return Error(Code::kInvalidArgument, "tensor ", shard.tensor.name,
                 " is not contiguous, so bytes cannot be received there; register a contiguous tensor");
  }
  for (Shard& shard : shards) {
    shard.landing = shard.landing.value_or(mode);
    if (parts.count > 1 && IsSpare(shard))
      return Error(Code::kInvalidArgument, "tensor ", shard.tensor.name,
                   " has landing 'shadow', a spare copy of the whole model, which cannot be used with "
                   "groups; use landing 'loader' or 'in_place'");
  }
  memory->shards_ = std::move(shards);
  memory->parts_ = std::move(parts);
  memory->all_shadow_ = !memory->Has(LandingMode::kInPlace) && !memory->Has(LandingMode::kLoader);
  WC_RETURN_IF_ERROR(memory->MakeShadow());
  std::vector<Memory> spans;
  for (size_t i = 0; i < memory->shards_.size(); ++i) {
    const Shard& shard = memory->shards_[i];
    const bool spare = IsSpare(shard);
    if (!spare && !shard.declared) memory->landing_[i] = SpanOf(shard).data();
    // The spare buffer is all ours, padding included, so that its shards share a region; between live tensors
    // lies what is not ours.
    const size_t bytes = shard.declared ? 0 : SpanOf(shard).size();
    spans.push_back({.kind = shard.memory.kind,
                     .device = shard.memory.device,
                     .address = memory->landing_[i],
                     .length = spare ? PaddedBytes(shard) : bytes});
  }
  WC_ASSIGN_OR_RETURN(memory->regions_,
                      RegionSet::Register(endpoint, spans, Access::kGranted, /*gap=*/0, *memory->devices_));
  return memory;
}

bool LandingMemory::Has(LandingMode mode) const {
  return std::any_of(shards_.begin(), shards_.end(),
                     [&](const Shard& shard) { return !shard.declared && shard.landing == mode; });
}

Result<std::byte*> LandingMemory::AllocateShadow(int device, size_t bytes) {
  if (device < 0) {
    WC_ASSIGN_OR_RETURN(shadow_, Allocate(bytes));
    return shadow_->bytes().data();
  }
  WC_ASSIGN_OR_RETURN(const auto copies, devices_->CopiesOf(device));
  WC_ASSIGN_OR_RETURN(auto buffer, device::Buffer::Allocate(copies->context(), bytes));
  std::byte* const address = buffer->address();
  device_shadows_.push_back(std::move(buffer));
  return address;
}

/// One buffer of host memory, and one of each device.
Status LandingMemory::MakeShadow() {
  std::map<int, size_t> totals;  // By device; -1: host.
  std::vector<size_t> offsets(shards_.size());
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!IsSpare(shards_[i])) continue;
    size_t& total = totals[shards_[i].memory.device];
    offsets[i] = total;
    total += PaddedBytes(shards_[i]);
  }
  landing_.assign(shards_.size(), nullptr);
  for (const auto& [device, total] : totals) {
    if (total == 0) continue;
    const auto begin = AllocateShadow(device, total);
    if (!begin.ok()) {
      return Error(begin.status().code(), "cannot make the second copy of the weights for shadow landing (",
                   HumanBytes(static_cast<double>(total)), "): ", begin.status().message(),
                   "; free that much memory, or register with landing in_place, which makes no copy");
    }
    shadow_bytes_ += total;
    for (size_t i = 0; i < shards_.size(); ++i)
      if (IsSpare(shards_[i]) && shards_[i].memory.device == device) landing_[i] = *begin + offsets[i];
  }
  return Status::Ok();
}

int LandingMemory::Find(const TensorInfo& tensor, const Box& box, uint32_t copy) const {
  const auto found = by_key_.find(ShardKey(tensor.name, box, copy));
  if (found == by_key_.end()) return -1;
  const Shard& shard = shards_[found->second];
  const bool same = shard.tensor == tensor && BoxOf(shard) == box && !shard.declared;
  return same ? static_cast<int>(found->second) : -1;
}

std::vector<std::string> LandingMemory::Describe() const {
  std::vector<std::string> lines;
  std::set<std::string> told;
  for (const Shard& shard : shards_) {
    std::string line = StrCat(shard.tensor.name, ": ", shard.declared ? "not sent" : NameOf(*shard.landing));
    if (told.insert(line).second) lines.push_back(std::move(line));
  }
  return lines;
}

protocol::LandingMap LandingMemory::Map() const {
  protocol::LandingMap map;
  for (const Region& region : regions_.regions()) map.regions.push_back(region.Descriptor());
  for (const RegionSet::Place& place : regions_.places())
    map.places.push_back({.region = place.region, .offset = place.offset});
  for (const auto& [key, shard] : by_key_) {
    map.places[shard].shard = key;
    map.places[shard].part = PartOf(shard);
  }
  return map;
}

bool LandingMemory::SameMemory(const std::vector<Shard>& others) const {
  struct Place {
    uint64_t key;  // Equal boxes have the same here.
    const Shard* shard;
  };
  const auto sorted = [](const std::vector<Shard>& shards) {
    std::vector<Place> places;
    places.reserve(shards.size());
    for (const Shard& shard : shards) places.push_back({ShardKey(shard.tensor.name, BoxOf(shard)), &shard});
    std::ranges::sort(places, {},
                      [](const Place& place) { return std::pair(place.key, DataOf(*place.shard)); });
    return places;
  };
  return std::ranges::equal(sorted(shards_), sorted(others), [](const Place& own, const Place& other) {
    const Shard& a = *own.shard;
    const Shard& b = *other.shard;
    return a.tensor == b.tensor && BoxOf(a) == BoxOf(b) && DataOf(a) == DataOf(b) && a.declared == b.declared;
  });
}

Status LandingMemory::CompareOnDevices() const {
  std::vector<Shard> live;
  std::vector<Shard> landed;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!IsSpare(shards_[i]) || !IsOnDevice(shards_[i])) continue;
    live.push_back(shards_[i]);
    landed.push_back(shards_[i]);
    landed.back().memory.address = landing_[i];
    landed.back().offset = 0;
  }
  WC_ASSIGN_OR_RETURN(const Digests of_live, DigestsOf(live, /*reader=*/nullptr, *devices_, {}));
  WC_ASSIGN_OR_RETURN(const Digests of_landed, DigestsOf(landed, /*reader=*/nullptr, *devices_, {}));
  for (size_t i = 0; i < live.size(); ++i)
    if (of_live[i] != of_landed[i]) return Changed(live[i]);
  return Status::Ok();
}

Status LandingMemory::CopyOnDevices() const {
  std::map<int, std::vector<device::Copy>> copies;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!IsSpare(shards_[i]) || !IsOnDevice(shards_[i])) continue;
    const auto live = SpanOf(shards_[i]);
    copies[shards_[i].memory.device].push_back({live.data(), landing_[i], live.size()});
  }
  for (const auto& [device, list] : copies) {
    WC_ASSIGN_OR_RETURN(const auto own, devices_->CopiesOf(device));
    WC_RETURN_IF_ERROR(own->Within(list));
  }
  return Status::Ok();
}

Status LandingMemory::CopyToLive(bool compares) const {
  if (shadow_bytes_ == 0) return Status::Ok();
  constexpr size_t kBlock = size_t{256} << 10;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!IsSpare(shards_[i]) || IsOnDevice(shards_[i])) continue;
    const auto live = SpanOf(shards_[i]);
    const size_t block = compares ? kBlock : live.size();
    for (size_t at = 0; at < live.size(); at += block) {
      const size_t bytes = std::min(block, live.size() - at);
      std::memcpy(live.data() + at, landing_[i] + at, bytes);
      if (compares && std::memcmp(live.data() + at, landing_[i] + at, bytes) != 0) return Changed(shards_[i]);
    }
  }
  WC_RETURN_IF_ERROR(CopyOnDevices());
  return compares ? CompareOnDevices() : Status::Ok();
}

}  // namespace weightcast::worker
