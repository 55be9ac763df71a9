#include "worker/stage_item.h"

#include <optional>

#include "base/strings.h"
#include "trace/metrics.h"
#include "worker/block_item.h"
#include "worker/device_memory.h"
#include "worker/gather_launch.h"
#include "worker/read_item.h"
#include "worker/shards.h"

namespace weightcast::worker {
namespace {

uint64_t Aligned(uint64_t offset) {
  return (offset + kLaunchAlignment - 1) / kLaunchAlignment * kLaunchAlignment;
}

DType LandingDType(const SendPlan& plan, const Item& item) {
  return plan.table.DestinationTensor(plan.table.routes[item.route].dst_shard).dtype;
}

GatherSource ItemSourceOf(const SendPlan& plan, const Item& item) {
  return SourceOf(plan.ShardOf(item), plan.table.routes[item.route].src_box);
}

/// The launches that stage an item; none where no kernel can.
std::vector<device::Launch> LaunchesOf(const SendPlan& plan, const Item& item, std::byte* target) {
  std::vector<device::Launch> launches;
  if (!IsOfBlocks(plan, item)) {
    const auto launch =
        GatherLaunch(ItemSourceOf(plan, item), item.first, item.count, LandingDType(plan, item), target);
    if (launch) launches.push_back(*launch);
    return launches;
  }
  for (const BlockPart& part : BlockPartsOf(plan, item, target)) {
    const auto launch = QuantiseLaunch(part);
    if (!launch) return {};
    launches.push_back(*launch);
  }
  return launches;
}

/// Of device memory: the bytes come to the host first.
Status GatherOnHost(const SendPlan& plan, const Item& item, DType to, std::byte* target) {
  GatherSource source = ItemSourceOf(plan, item);
  thread_local HostCopy copy;
  if (const Shard& shard = plan.ShardOf(item); IsOnDevice(shard)) {
    WC_RETURN_IF_ERROR(copy.Fill(*plan.memory->devices, shard.memory.device, source, item.first, item.count));
    source.data = copy.data();
  }
  Gather(source, item.first, item.count, to, target);
  return Status::Ok();
}

}  // namespace

uint64_t StagedAt(const StagingSpace& space, uint64_t end) {
  return space.kernels == nullptr ? end : Aligned(end);
}

uint64_t StagedBytes(const SendPlan& plan, const Item& item) {
  return static_cast<uint64_t>(BytesOf(LandingDType(plan, item), item.count));
}

Status ItemStager::Add(const Item& item, const RouteSegments& segments, uint64_t at) {
  static trace::Counter& copied = trace::CounterNamed("gpu.host_casts");
  const DType to = LandingDType(plan_, item);
  std::byte* const target = space_.data + at;
  if (space_.kernels != nullptr) {
    const auto launches = LaunchesOf(plan_, item, target);
    if (launches.empty())
      return Error(Code::kInternal, "no GPU kernel converts tensor ", plan_.ShardOf(item).tensor.name,
                   " from ", NameOf(plan_.ShardOf(item).tensor.dtype), " to ", NameOf(to),
                   "; set gpu_kernels to 0, and please report this as a bug");
    launches_.insert(launches_.end(), launches.begin(), launches.end());
    return Status::Ok();
  }
  if (IsOnDevice(plan_.ShardOf(item))) copied.Add();
  if (IsOfBlocks(plan_, item)) {
    for (const BlockPart& part : BlockPartsOf(plan_, item, target))
      WC_RETURN_IF_ERROR(QuantiseOnHost(plan_, item, part));
    return Status::Ok();
  }
  if (plan_.memory->reader != nullptr)
    return ReadItem(*plan_.memory->reader, plan_.SourceOf(item), plan_.ShardOf(item), segments, item, to,
                    target);
  return GatherOnHost(plan_, item, to, target);
}

Status ItemStager::Finish() { return launches_.empty() ? Status::Ok() : space_.kernels->Run(launches_); }

int StagingPlaceOf(const SendPlan& plan, size_t target, uint32_t transfer) {
  if (plan.memory->reader != nullptr) return StagingPool::kHost;
  std::optional<int> place;
  uint64_t staged = 0;
  for (const Item& item : plan.batches[target].Of(transfer)) {
    if (!plan.IsStaged(plan.table.routes[item.route])) continue;
    const Shard& shard = plan.ShardOf(item);
    const int device = IsOnDevice(shard) ? shard.memory.device : StagingPool::kHost;
    if (device == StagingPool::kHost || place.value_or(device) != device) return StagingPool::kHost;
    place = device;
    // Every block begins at a multiple of far more than the alignment.
    if (LaunchesOf(plan, item, nullptr).empty()) return StagingPool::kHost;
    staged = Aligned(staged) + StagedBytes(plan, item);
  }
  return staged <= static_cast<uint64_t>(kMaxTransferBytes) ? place.value_or(StagingPool::kHost)
                                                            : StagingPool::kHost;
}

}  // namespace weightcast::worker
