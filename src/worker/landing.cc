#include "worker/landing.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "base/strings.h"
#include "worker/gather.h"
#include "worker/shard_key.h"
#include "worker/shards.h"

namespace weightcast::worker {
namespace {

/// Of shards in the spare buffer: a cache line, so that no two shards share one.
constexpr size_t kAlignment = 64;

size_t Padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool IsSpare(const Shard& shard) { return !shard.declared && shard.landing == LandingMode::kShadow; }

std::string_view NameOf(LandingMode mode) {
  static constexpr std::string_view kNames[] = {"in_place", "shadow", "loader"};
  return kNames[static_cast<size_t>(mode)];
}

}  // namespace

Result<std::shared_ptr<LandingMemory>> LandingMemory::Register(Endpoint& endpoint, std::vector<Shard> shards,
                                                               LandingMode mode, PartsOfShards parts) {
  auto memory = std::make_shared<LandingMemory>();
  WC_ASSIGN_OR_RETURN(memory->by_key_,
                      CheckShards(shards, Needs::kMemory, StrCat("rank ", endpoint.self().rank)));
  for (const Shard& shard : shards) {
    if (shard.declared || shard.strides.empty() || IsDense(BoxOf(shard).size, shard.strides)) continue;
    return Status(Code::kInvalidArgument,
                  StrCat("tensor ", shard.tensor.name,
                         " is not contiguous; bytes can only land in contiguous tensors"));
  }
  for (Shard& shard : shards) {
    shard.landing = shard.landing.value_or(mode);
    if (parts.count > 1 && IsSpare(shard))
      return Status(Code::kInvalidArgument,
                    StrCat("tensor ", shard.tensor.name,
                           " lands in a spare copy of the whole model (shadow landing), which groups are to "
                           "avoid; use loader landing"));
  }
  memory->shards_ = std::move(shards);
  memory->parts_ = std::move(parts);
  memory->all_shadow_ = !memory->Has(LandingMode::kInPlace) && !memory->Has(LandingMode::kLoader);
  WC_RETURN_IF_ERROR(memory->MakeShadow());
  std::vector<std::span<std::byte>> spans;
  for (size_t i = 0; i < memory->shards_.size(); ++i) {
    const Shard& shard = memory->shards_[i];
    const bool spare = IsSpare(shard);
    if (!spare && !shard.declared) memory->landing_[i] = SpanOf(shard).data();
    // The spare buffer is all ours, padding included, so that its shards share a region; between live tensors
    // lies what is not ours.
    const size_t bytes = shard.declared ? 0 : SpanOf(shard).size();
    spans.emplace_back(memory->landing_[i], spare ? Padded(bytes) : bytes);
  }
  WC_ASSIGN_OR_RETURN(memory->regions_, RegionSet::Register(endpoint, spans, Access::kGranted, /*gap=*/0));
  return memory;
}

bool LandingMemory::Has(LandingMode mode) const {
  return std::any_of(shards_.begin(), shards_.end(),
                     [&](const Shard& shard) { return !shard.declared && shard.landing == mode; });
}

Status LandingMemory::MakeShadow() {
  size_t total = 0;
  std::vector<size_t> offsets;
  for (const Shard& shard : shards_) {
    offsets.push_back(total);
    if (IsSpare(shard)) total += Padded(SpanOf(shard).size());
  }
  landing_.assign(shards_.size(), nullptr);
  if (total == 0) return Status::Ok();
  auto buffer = Allocate(total);
  if (!buffer.ok()) {
    return {buffer.status().code(),
            StrCat("cannot make the second copy of the weights for shadow landing (",
                   HumanBytes(static_cast<double>(total)), "): ", buffer.status().message())};
  }
  shadow_ = std::move(*buffer);
  for (size_t i = 0; i < shards_.size(); ++i)
    if (IsSpare(shards_[i])) landing_[i] = shadow_->bytes().data() + offsets[i];
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

wire::LandingMap LandingMemory::Map() const {
  wire::LandingMap map;
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

Status LandingMemory::CopyAndCompare() const {
  constexpr size_t kBlock = size_t{256} << 10;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!IsSpare(shards_[i])) continue;
    const auto live = SpanOf(shards_[i]);
    for (size_t at = 0; at < live.size(); at += kBlock) {
      const size_t bytes = std::min(kBlock, live.size() - at);
      std::memcpy(live.data() + at, landing_[i] + at, bytes);
      if (std::memcmp(live.data() + at, landing_[i] + at, bytes) != 0)
        return {Code::kCorrupt, StrCat("tensor ", shards_[i].tensor.name,
                                       " changed while it was copied; who else writes to it?")};
    }
  }
  return Status::Ok();
}

void LandingMemory::CopyToLive() const {
  if (shadow_ == nullptr) return;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!IsSpare(shards_[i])) continue;
    const auto live = SpanOf(shards_[i]);
    if (!live.empty()) std::memcpy(live.data(), landing_[i], live.size());
  }
}

}  // namespace weightcast::worker
