#include "worker/block_item.h"

#include <algorithm>
#include <utility>

#include "kernels/list.h"
#include "kernels/quantise.h"
#include "plan/assign.h"
#include "plan/quantise.h"
#include "worker/device_memory.h"
#include "worker/quantise.h"
#include "worker/read_item.h"
#include "worker/shards.h"

namespace weightcast::worker {
namespace {

constexpr uint32_t kMostLaunched = 1024;  ///< Blocks of threads.

struct QuantiseKernel {
  DType from;
  const char* name;
};
#define WC_QUANTISE_KERNEL(name, From) {DType::k##From, "quantise_blocks_" #name},
constexpr QuantiseKernel kKernels[] = {WC_FLOATS(WC_QUANTISE_KERNEL)};
#undef WC_QUANTISE_KERNEL

/// The user's shard that the item is computed from.
size_t OriginOf(const SendPlan& plan, const Item& item) { return plan.memory->OriginOf(plan.SourceOf(item)); }

int64_t BytesOfElement(const GatherSource& source) { return BitsOf(source.dtype) / 8; }

/// Whether the elements of each row lie side by side.
bool HasRows(const GatherSource& source) { return source.box.size[1] == 1 || source.strides[1] == 1; }

/// Of the first element of the box.
const std::byte* FirstOf(const GatherSource& source) {
  int64_t distance = 0;
  for (size_t d = 0; d < 2; ++d)
    distance += (source.box.offset[d] - source.shard.offset[d]) * source.strides[d];
  return source.data + distance * BytesOfElement(source);
}

HostMatrix MatrixOf(const GatherSource& source, const std::byte* data, int64_t stride) {
  return {.data = data,
          .dtype = source.dtype,
          .rows = source.box.size[0],
          .columns = source.box.size[1],
          .stride = stride};
}

/// Reads the box from the reader, dense.
Status ReadBox(const SendPlan& plan, size_t index, const GatherSource& source, std::byte* target) {
  const Box& box = source.box;
  WC_ASSIGN_OR_RETURN(const plan::Segments segments,
                      plan::Segments::Of(source.shard, source.dtype, box, source.dtype, box, box.offset));
  const int bits = BitsOf(source.dtype);
  const int64_t elements = ElementsOf(box.size);
  return ReadItem(*plan.memory->reader, index, plan.memory->shards[index],
                  {.segments = segments, .elements = elements, .src_bits = bits, .dst_bits = bits},
                  {.route = 0, .first = 0, .count = elements}, source.dtype, target);
}

/// The box in host memory, until the next call of this thread.
Result<HostMatrix> Fetch(const SendPlan& plan, size_t index, GatherSource source) {
  thread_local HostCopy copy;
  thread_local std::vector<std::byte> dense;
  const Shard& shard = plan.memory->shards[index];
  const int64_t elements = ElementsOf(source.box.size);
  const int64_t bytes = BytesOfElement(source);
  const bool reads = plan.memory->reader != nullptr;
  if (IsOnDevice(shard) && !reads) {
    WC_RETURN_IF_ERROR(copy.Fill(*plan.memory->devices, shard.memory.device, source, 0, elements));
    source.data = copy.data();
  }
  if (!reads && HasRows(source)) return MatrixOf(source, FirstOf(source), source.strides[0] * bytes);
  dense.resize(static_cast<size_t>(elements * bytes));
  if (reads) {
    WC_RETURN_IF_ERROR(ReadBox(plan, index, source, dense.data()));
  } else {
    Gather(source, 0, elements, source.dtype, dense.data());
  }
  return MatrixOf(source, dense.data(), source.box.size[1] * bytes);
}

}  // namespace

bool IsOfBlocks(const SendPlan& plan, const Item& item) {
  return plan.table.routes[item.route].transform == plan::Transform::kQuantise ||
         plan.SourceOf(item) != OriginOf(plan, item);
}

std::vector<BlockPart> BlockPartsOf(const SendPlan& plan, const Item& item, std::byte* target) {
  const auto& route = plan.table.routes[item.route];
  const Shard& shard = plan.memory->shards[OriginOf(plan, item)];
  const bool scales = route.transform != plan::Transform::kQuantise;
  LargeVector<int64_t> cuts;
  plan::CutRowMajor(route.src_box.offset, route.src_box.size, item.first, item.first + item.count, cuts);
  std::vector<BlockPart> parts;
  for (size_t at = 0; at < cuts.size(); at += 4) {
    const Box part{{cuts[at], cuts[at + 1]}, {cuts[at + 2], cuts[at + 3]}};
    const int64_t bytes = scales ? int64_t{sizeof(float)} : 1;
    parts.push_back({.source = SourceOf(shard, scales ? plan::BlocksOf(part, shard.tensor.shape) : part),
                     .scales = scales,
                     .target = target,
                     .stride = part.size[1] * bytes});
    if (target != nullptr) target += plan::ElementsOf(part) * bytes;
  }
  return parts;
}

/// In strips that are as long as routes of values: so the memory that is read at a time is bounded.
Status QuantiseOnHost(const SendPlan& plan, const Item& item, const BlockPart& part) {
  const Box& box = part.source.box;
  for (int64_t row = 0; row < box.size[0]; row += plan::kBlockSize) {
    for (int64_t column = 0; column < box.size[1]; column += plan::kMaxQuantisedColumns) {
      GatherSource strip = part.source;
      strip.box = {{box.offset[0] + row, box.offset[1] + column},
                   {std::min(plan::kBlockSize, box.size[0] - row),
                    std::min(plan::kMaxQuantisedColumns, box.size[1] - column)}};
      WC_ASSIGN_OR_RETURN(const HostMatrix matrix, Fetch(plan, OriginOf(plan, item), std::move(strip)));
      Fp8Matrix made;
      if (part.scales) {
        made = {.scales = part.target + row / plan::kBlockSize * part.stride +
                          column / plan::kBlockSize * int64_t{sizeof(float)},
                .scales_stride = part.stride};
      } else {
        made = {.values = part.target + row * part.stride + column, .values_stride = part.stride};
      }
      QuantiseBlocks(matrix, made);
    }
  }
  return Status::Ok();
}

std::optional<device::Launch> QuantiseLaunch(const BlockPart& part) {
  const GatherSource& source = part.source;
  const auto first = reinterpret_cast<uint64_t>(FirstOf(source));
  const auto bytes = static_cast<uint64_t>(BytesOfElement(source));
  if (!HasRows(source) || first % bytes != 0) return std::nullopt;
  const auto* const kernel = std::find_if(std::begin(kKernels), std::end(kKernels),
                                          [&](const auto& each) { return each.from == source.dtype; });
  if (kernel == std::end(kKernels)) return std::nullopt;
  const auto target = reinterpret_cast<uint64_t>(part.target);
  const auto stride = static_cast<uint64_t>(part.stride);
  const kernels::QuantiseBlocksParameters p{.source = first,
                                            .target = part.scales ? 0 : target,
                                            .scales = part.scales ? target : 0,
                                            .rows = static_cast<uint64_t>(source.box.size[0]),
                                            .columns = static_cast<uint64_t>(source.box.size[1]),
                                            .source_stride = static_cast<uint64_t>(source.strides[0]) * bytes,
                                            .target_stride = part.scales ? 0 : stride,
                                            .scale_stride = part.scales ? stride : 0};
  const uint64_t blocks = std::clamp<uint64_t>(kernels::Tile::CountOf(p), 1, kMostLaunched);
  return device::Launch{.kernel = kernel->name,
                        .blocks = static_cast<uint32_t>(blocks),
                        .threads = kernels::kQuantiseThreads,
                        .parameters = p};
}

}  // namespace weightcast::worker
