#include "worker/send_plan.h"

#include <algorithm>

#include "base/strings.h"
#include "plan/links.h"
#include "worker/device_memory.h"
#include "worker/landing.h"
#include "worker/scales.h"
#include "worker/shards.h"
#include "worker/stage_item.h"

namespace weightcast::worker {
namespace {

Result<std::shared_ptr<SourceMemory>> Register(Endpoint& endpoint, std::vector<Shard> shards,
                                               const Settings& settings, const NameRules& rules,
                                               std::shared_ptr<ShardReader> reader = nullptr) {
  const std::string holder = StrCat("rank ", endpoint.self().rank);
  auto memory = std::make_shared<SourceMemory>();
  memory->devices = std::make_shared<DeviceMemories>(settings);
  WC_ASSIGN_OR_RETURN(memory->by_key,
                      CheckShards(shards, reader == nullptr ? Needs::kMemory : Needs::kNoMemory, holder));
  if (reader != nullptr) {
    memory->dense.assign(shards.size(), false);
    memory->reader = std::move(reader);
    memory->shards = std::move(shards);
    WC_RETURN_IF_ERROR(AddScales(rules, holder, *memory));
    return memory;
  }
  WC_RETURN_IF_ERROR(CheckSettings(shards, settings));
  WC_RETURN_IF_ERROR(CheckPlaces(shards, *memory->devices));
  std::vector<Memory> spans;
  for (const Shard& shard : shards) {
    const bool dense = shard.strides.empty() || IsDense(BoxOf(shard).size, shard.strides);
    if (!dense && BitsOf(shard.tensor.dtype) < 8) {
      return Error(
          Code::kInvalidArgument, "tensor ", shard.tensor.name, " of ", NameOf(shard.tensor.dtype),
          " is not contiguous, and its elements are smaller than a byte; register a contiguous copy");
    }
    memory->dense.push_back(dense);
    spans.push_back(dense && !shard.declared ? MemoryOf(shard) : Memory());
  }
  // Less than a page apart: what lies between is mapped, and nobody but us reads it.
  constexpr size_t kGap = 4095;
  WC_ASSIGN_OR_RETURN(memory->regions,
                      RegionSet::Register(endpoint, spans, Access::kLocal, kGap, *memory->devices));
  memory->shards = std::move(shards);
  WC_RETURN_IF_ERROR(AddScales(rules, holder, *memory));
  return memory;
}

}  // namespace

Result<std::shared_ptr<const SourceMemory>> RegisterSources(Endpoint& endpoint, std::vector<Shard> shards,
                                                            const NameRules& rules,
                                                            std::shared_ptr<ShardReader> reader,
                                                            const Settings& settings) {
  WC_ASSIGN_OR_RETURN(auto memory, Register(endpoint, std::move(shards), settings, rules, std::move(reader)));
  if (!rules.rules.empty()) memory->rules = ToJson(rules);
  return std::shared_ptr<const SourceMemory>(std::move(memory));
}

Result<std::shared_ptr<const SourceMemory>> RegisterSources(Endpoint& endpoint,
                                                            std::shared_ptr<const LandingMemory> landing,
                                                            const Settings& settings) {
  std::vector<Shard> shards = landing->shards();
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!shards[i].declared) {
      shards[i].memory.address = landing->LandingOf(i);
      shards[i].memory.length = SpanOf(shards[i]).size();
    }
    shards[i].offset = 0;
  }
  WC_ASSIGN_OR_RETURN(auto memory, Register(endpoint, std::move(shards), settings, NameRules()));
  memory->landing = std::move(landing);
  return std::shared_ptr<const SourceMemory>(std::move(memory));
}

int SendPlan::TargetOf(uint32_t destination) const {
  for (size_t i = 0; i < targets.size(); ++i)
    if (targets[i].destination == destination) return static_cast<int>(i);
  return -1;
}

bool SendPlan::IsStaged(const plan::RankTable::Route& route) const {
  return route.transform != plan::Transform::kNone || !memory->dense[sources[route.src_shard]];
}

bool SendPlan::IsStaged(size_t target, uint32_t transfer) const {
  const auto items = batches[target].Of(transfer);
  return std::ranges::any_of(items, [&](const Item& item) { return IsStaged(table.routes[item.route]); });
}

Status FindSources(SendPlan& plan) {
  plan.sources.clear();
  for (uint32_t i = 0; i < plan.table.source_shards.size(); ++i) {
    const TensorInfo& tensor = plan.table.SourceTensor(i);
    const Box& box = plan.table.source_shards[i].box;
    const auto found = plan.memory->by_key.find(ShardKey(tensor.name, box));  // Of copies any will do.
    const Shard* shard = found == plan.memory->by_key.end() ? nullptr : &plan.memory->shards[found->second];
    if (shard == nullptr || shard->tensor != tensor || BoxOf(*shard) != box || shard->declared) {
      return Error(Code::kProtocol, "the routing table needs ", tensor.name, " ", ToString(box),
                   ", which this rank has not registered; if it has registered again, wait for the next "
                   "plan, else use the same weightcast on all hosts");
    }
    plan.sources.push_back(found->second);
  }
  for (const auto& route : plan.table.routes) {
    const TensorInfo& from = plan.table.SourceTensor(route.src_shard);
    const DType to = plan.table.DestinationTensor(route.dst_shard).dtype;
    const auto transform = plan::TransformBetween(from, plan.table.DestinationTensor(route.dst_shard));
    if (!transform.ok() || *transform != route.transform)
      return Error(Code::kProtocol, "the routing table casts ", from.name, " from ", NameOf(from.dtype),
                   " to ", NameOf(to), ", which is not possible; use the same weightcast on all hosts");
    const size_t shard = plan.sources[route.src_shard];
    if (route.transform != plan::Transform::kNone && plan.memory->OriginOf(shard) != shard)
      return Error(Code::kProtocol, "the routing table casts ", from.name,
                   ", which holds scales; they are never cast: use the same weightcast on all hosts");
  }
  return Status::Ok();
}

Status FindPlaces(SendPlan& plan, int destination, const protocol::LandingMap& map,
                  std::span<const RemoteRegion> imported) {
  std::unordered_map<uint64_t, const protocol::LandingMap::Place*> by_key;
  for (const auto& place : map.places) by_key.emplace(place.shard, &place);
  plan.places.resize(plan.table.destination_shards.size());
  plan.parts.resize(plan.table.destination_shards.size());
  for (uint32_t i = 0; i < plan.places.size(); ++i) {
    const auto& shard = plan.table.destination_shards[i];
    if (shard.rank != destination) continue;
    const TensorInfo& tensor = plan.table.DestinationTensor(i);
    const auto found = by_key.find(ShardKey(tensor.name, shard.box, shard.copy));
    if (found == by_key.end() || found->second->region >= imported.size()) {
      return Error(Code::kProtocol, "that rank has registered no memory for ", tensor.name, " ",
                   ToString(shard.box),
                   "; if it has registered again, wait for the next plan, else use the same weightcast on "
                   "all hosts");
    }
    const auto bytes = static_cast<uint64_t>(BytesOf(tensor.dtype, plan::ElementsOf(shard.box)));
    const auto place = imported[found->second->region].Slice(found->second->offset, bytes);
    if (!place.ok())
      return Error(Code::kProtocol, "that rank has registered less than the ", bytes, " bytes of ",
                   tensor.name, " ", ToString(shard.box), "; use the same weightcast on all hosts");
    plan.places[i] = *place;
    plan.parts[i] = found->second->part;
  }
  return Status::Ok();
}

Status MakePieces(const SendPlan& plan, size_t target, uint32_t transfer, const StagingSpace& staging,
                  std::vector<Piece>& pieces) {
  uint64_t staged = 0;
  ItemStager stager(plan, staging);
  for (const Item& item : plan.batches[target].Of(transfer)) {
    const auto& route = plan.table.routes[item.route];
    const bool stage = plan.IsStaged(route);
    WC_ASSIGN_OR_RETURN(const RouteSegments segments, SegmentsOf(plan.table, route));
    if (stage) {
      staged = StagedAt(staging, staged);
      WC_RETURN_IF_ERROR(stager.Add(item, segments, staged));
    }
    const LocalSlice source =
        stage ? staging.slice : plan.memory->regions.slices()[plan.sources[route.src_shard]];
    const RemoteSlice& place = plan.places[route.dst_shard];
    Status outside;
    ForEachSegment(segments, item, [&](const ItemSegment& segment) {
      const auto bytes = static_cast<uint64_t>(segment.dst_bytes);
      const auto local = source.Slice(stage ? staged : static_cast<uint64_t>(segment.src_offset), bytes);
      const auto remote = place.Slice(static_cast<uint64_t>(segment.dst_offset), bytes);
      if (!local.ok() || !remote.ok()) {
        outside = local.ok() ? remote.status() : local.status();
        return;
      }
      pieces.push_back({*local, *remote});
      if (stage) staged += static_cast<uint64_t>(segment.dst_bytes);
    });
    WC_RETURN_IF_ERROR(outside);
  }
  return stager.Finish();
}

}  // namespace weightcast::worker
