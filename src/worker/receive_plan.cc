#include "worker/receive_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "endpoint/transfers/chunks.h"
#include "worker/device_memory.h"
#include "worker/route_segments.h"
#include "worker/table_file.h"

namespace weightcast::worker {
namespace {

/// Makes few ranges of many segments: those that touch become one, those that are equally far apart a
/// pattern.
class RangeMaker {
 public:
  /// `whole`: what the offsets of segments to come count from.
  Status Begin(LocalSlice whole) {
    WC_RETURN_IF_ERROR(Flush());
    whole_ = whole;
    return Status::Ok();
  }
  Status Add(uint64_t offset, uint64_t length) {
    if (count_ == 1 && offset == offset_ + length_) {
      length_ += length;
      return Status::Ok();
    }
    const uint64_t apart = offset - offset_;
    const bool same = count_ > 0 && length == length_ && offset > offset_ + length_;
    if (same && (count_ == 1 || apart == stride_ * count_)) {
      if (count_++ == 1) stride_ = apart;
      return Status::Ok();
    }
    WC_RETURN_IF_ERROR(Flush());
    offset_ = offset;
    length_ = length;
    count_ = 1;
    return Status::Ok();
  }
  Result<std::vector<GrantRange>> Finish() {
    WC_RETURN_IF_ERROR(Flush());
    return std::move(ranges_);
  }

 private:
  Status Flush() {
    if (count_ == 0) return Status::Ok();
    WC_ASSIGN_OR_RETURN(const LocalSlice first, whole_.Slice(offset_, length_));
    ranges_.push_back({.first = first, .stride = stride_, .count = count_});
    count_ = stride_ = 0;
    return Status::Ok();
  }

  LocalSlice whole_;
  uint64_t offset_ = 0;
  uint64_t length_ = 0;
  uint64_t stride_ = 0;
  uint64_t count_ = 0;  ///< 0: no segment is kept.
  std::vector<GrantRange> ranges_;
};

/// The bytes that the routes of one source fill in one part.
Result<std::vector<GrantRange>> RangesOf(const ReceivePlan& plan, size_t source, uint32_t part) {
  RangeMaker ranges;
  std::optional<uint32_t> last;
  const Batches& batches = plan.batches[source];
  for (const Item& item : batches.Of(batches.OfPart(part))) {
    if (std::exchange(last, item.route) == item.route) continue;  // Another part of the same route.
    const auto& route = plan.table.routes[item.route];
    WC_ASSIGN_OR_RETURN(const RouteSegments segments, SegmentsOf(plan.table, route));
    WC_RETURN_IF_ERROR(ranges.Begin(plan.memory->SliceOf(plan.shards[route.dst_shard])));
    Status status;
    ForEachSegment(segments, {.route = item.route, .first = 0, .count = segments.elements},
                   [&](const ItemSegment& segment) {
                     if (!status.ok()) return;
                     status = ranges.Add(static_cast<uint64_t>(segment.dst_offset),
                                         static_cast<uint64_t>(segment.dst_bytes));
                   });
    WC_RETURN_IF_ERROR(status);
  }
  return ranges.Finish();
}

}  // namespace

uint64_t ChunksOf(const ReceivePlan& plan, size_t source, uint32_t first, uint32_t count, uint64_t chunk) {
  const auto for_each_item = [&](auto&& visit) {
    for (const Item& item : plan.batches[source].Of({first, first + count}))
      visit(item, plan.table.routes[item.route]);
  };
  bool all_to_device = true;
  for_each_item([&](const Item&, const plan::RankTable::Route& route) {
    all_to_device &= IsOnDevice(plan.memory->shards()[plan.shards[route.dst_shard]]);
  });
  ChunkCounter counter(all_to_device ? DeviceChunk(chunk) : chunk);
  for_each_item([&](const Item& item, const plan::RankTable::Route& route) {
    const auto pieces = SegmentsOf(plan.table, route);
    if (!pieces.ok()) return;  // MakeReceivePlan has found that they can be had.
    ForEachSegment(*pieces, item, [&](const ItemSegment& segment) {
      counter.Add(static_cast<uint64_t>(segment.dst_bytes));
    });
  });
  return counter.count();
}

Result<std::shared_ptr<const ReceivePlan>> MakeReceivePlan(const protocol::Plan& plan,
                                                           const std::string& tables,
                                                           std::shared_ptr<const LandingMemory> memory) {
  auto made = std::make_shared<ReceivePlan>();
  WC_ASSIGN_OR_RETURN(made->table, LoadTable(plan, tables, plan::RankTable::Role::kInference));
  for (const int peer : made->table.peers) {
    const protocol::Member& member = plan.peers[static_cast<size_t>(peer)];
    made->sources.push_back({.source = static_cast<uint32_t>(peer),
                             .incarnation = member.incarnation,
                             .name = protocol::ToString(member.name)});
  }
  std::vector<uint32_t> parts;
  for (const auto& shard : made->table.destination_shards) {
    const TensorInfo& tensor = made->table.destination_tensors[static_cast<size_t>(shard.tensor)];
    const int index = memory->Find(tensor, shard.box, shard.copy);
    if (index < 0) {
      return Error(Code::kProtocol, "the routing table fills ", tensor.name, " ", ToString(shard.box),
                   ", which this rank has not registered; if it has registered again, wait for the "
                   "next plan, else use the same weightcast on all hosts");
    }
    made->shards.push_back(static_cast<size_t>(index));
    parts.push_back(memory->PartOf(made->shards.back()));
  }
  made->batches = CutIntoBatches(made->table, parts);
  made->memory = std::move(memory);
  for (size_t source = 0; source < made->sources.size(); ++source) {
    auto& ranges = made->sources[source].ranges;
    ranges.resize(made->memory->parts());
    for (uint32_t part = 0; part < made->memory->parts(); ++part) {
      WC_ASSIGN_OR_RETURN(ranges[part], RangesOf(*made, source, part));
    }
  }
  return std::shared_ptr<const ReceivePlan>(std::move(made));
}

}  // namespace weightcast::worker
