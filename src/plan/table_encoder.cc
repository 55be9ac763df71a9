#include <array>
#include <span>
#include <utility>
#include <vector>

#include "base/advice.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/strings.h"
#include "base/varint.h"
#include "plan/table_format.h"
#include "plan/table_layout.h"

namespace weightcast::plan {
namespace {

void WriteRoute(const RouteView& route, const int64_t* source, const int64_t* destination,
                VarintWriter& out) {
  const size_t dims = route.size.size();
  bool whole = true;
  bool origin = true;
  for (size_t d = 0; d < dims; ++d) {
    whole = whole && route.src_offset[d] == source[d] && route.size[d] == source[dims + d];
    origin = origin && route.dst_offset(static_cast<int>(d)) == destination[d];
  }
  const Transform transform = route.link->transform;
  out.Put((transform == Transform::kCast ? kRouteCasts : 0U) |
          (transform == Transform::kQuantise ? kRouteQuantises : 0U) | (whole ? kRouteIsWholeSource : 0U) |
          (origin ? kRouteAtOrigin : 0U));
  // Relative to the shards: small numbers are short.
  for (size_t d = 0; !whole && d < dims; ++d) {
    out.Put(static_cast<uint64_t>(route.src_offset[d] - source[d]));
    out.Put(static_cast<uint64_t>(route.size[d]));
  }
  for (size_t d = 0; !origin && d < dims; ++d)
    out.Put(static_cast<uint64_t>(route.dst_offset(static_cast<int>(d)) - destination[d]));
}

/// The numbers of the routes that concern a rank, in its order.
std::vector<uint32_t> RoutesOf(RankTable::Role role, int rank, const RoutingTable& table) {
  if (role == RankTable::Role::kInference) {
    const auto routes = table.OfDestination(rank);
    return {routes.begin(), routes.end()};
  }
  const auto [first, last] = table.OfSource(rank);
  std::vector<uint32_t> routes;
  for (int64_t route = first; route < last; ++route) routes.push_back(static_cast<uint32_t>(route));
  return routes;
}

/// Room for the header, which is known last.
VarintWriter BeginTable() {
  VarintWriter out;
  out.PutRaw(std::string(kTableHeaderBytes, '\0'));
  return out;
}

std::string FinishTable(VarintWriter out) {
  std::string bytes = out.Take();
  ByteWriter header;
  header.PutRaw(kTableMagic);
  header.Put(kTableFormatVersion);
  header.Put(Hash64(std::string_view(bytes).substr(kTableHeaderBytes)));
  header.bytes().copy(bytes.data(), kTableHeaderBytes);
  return bytes;
}

/// What is needed to write one route down, sent for before its turn: it lies all over the memory of a large
/// plan.
struct RouteAhead {
  RouteView view;
  uint32_t slot;
  RankBoxes source;       ///< The boxes of which one is the shard's, as FindCoords tells them.
  RankBoxes destination;  ///< Likewise.
};

/// The shard of which a route is a part, or to which it goes.
LayoutShard SourceOf(const RouteAhead& ahead) {
  const RouteView& route = ahead.view;
  const size_t dims = route.size.size();
  // With one box nothing is looked at: it lies elsewhere in memory.
  const uint32_t number = ahead.source.count > 1 ? ahead.source.Find(route.src_offset) : 0;
  return {.rank = route.src_rank,
          .tensor = route.link->src_tensor,
          .dims = dims,
          .coords = ahead.source.coords + size_t{number} * 2 * dims,
          .number = number};
}

LayoutShard DestinationOf(const RouteAhead& ahead) {
  const RouteView& route = ahead.view;
  const size_t dims = route.size.size();
  uint32_t number = 0;
  if (ahead.destination.count > 1) {
    std::array<int64_t, kMaxDims> at;
    for (size_t d = 0; d < dims; ++d) at[d] = route.dst_offset(static_cast<int>(d));
    number = ahead.destination.Find(std::span(at).first(dims), route.dst_copy);
  }
  return {.rank = route.dst_rank,
          .tensor = route.link->dst_tensor,
          .dims = dims,
          .coords = ahead.destination.coords + size_t{number} * 2 * dims,
          .number = number,
          .copy = route.dst_copy};
}

class RoutesAhead {
 public:
  RoutesAhead(std::span<const uint32_t> routes, const Layout& trainers, const Layout& inference,
              const RoutingTable& table)
      : routes_(routes), trainers_(trainers), inference_(inference), table_(table) {
    for (size_t i = 0; i < kAhead; ++i) Fetch(i);
  }

  /// Route number `i`; to be asked for in order.
  RouteAhead Take(size_t i) {
    const RouteAhead taken = ring_[i % kAhead];
    Fetch(i + kAhead);
    return taken;
  }

 private:
  static constexpr size_t kAhead = 16;

  void Fetch(size_t i) {
    if (i + kAhead < routes_.size()) table_.Prefetch(routes_[i + kAhead]);
    if (i >= routes_.size()) return;
    const RouteView view = table_.View(routes_[i]);
    const RouteAhead ahead{.view = view,
                           .slot = table_.SlotOf(routes_[i]),
                           .source = trainers_.FindCoords(view.link->src_tensor, view.src_rank),
                           .destination = inference_.FindCoords(view.link->dst_tensor, view.dst_rank)};
    __builtin_prefetch(view.src_offset.data());
    __builtin_prefetch(ahead.source.coords);
    __builtin_prefetch(ahead.destination.coords);
    ring_[i % kAhead] = ahead;
  }

  const std::span<const uint32_t> routes_;
  const Layout& trainers_;
  const Layout& inference_;
  const RoutingTable& table_;
  std::array<RouteAhead, kAhead> ring_{};
};

}  // namespace

TableEncoder::TableEncoder(const Layout& trainers, const Layout& inference, const RoutingTable& table)
    : trainers_(trainers),
      inference_(inference),
      table_(table),
      trainer_tensors_(trainers),
      inference_tensors_(inference) {}

Result<std::string> TableEncoder::Encode(RankTable::Role role, int rank, uint32_t epoch) const {
  const bool sends = role == RankTable::Role::kTrainer;
  if (rank < 0 || rank >= (sends ? table_.source_ranks() : table_.destination_ranks()))
    return Error(Code::kInvalidArgument, "the plan has no ", sends ? "trainer " : "inference rank ", rank,
                 ", only ", sends ? table_.source_ranks() : table_.destination_ranks(), " from 0 on",
                 kReportBug);
  const std::vector<uint32_t> routes = RoutesOf(role, rank, table_);
  const auto too_large = [&](std::string_view what) {
    return Error(Code::kExhausted, "the table of ", sends ? "trainer " : "inference rank ", rank, " has ",
                 what, "; use fewer or larger shards");
  };
  if (routes.size() > kMaxRoutesOfRank)
    return too_large(StrCat(routes.size(), " routes of at most ", kMaxRoutesOfRank));

  TableShards sources(trainers_, routes.size(), sends ? rank : -1);
  TableShards destinations(inference_, routes.size(), sends ? -1 : rank);
  RoutesAhead next(routes, trainers_, inference_, table_);
  VarintWriter written;
  for (size_t i = 0; i < routes.size(); ++i) {
    const RouteAhead route = next.Take(i);
    const uint32_t source = sources.Number(SourceOf(route));
    const uint32_t destination = destinations.Number(DestinationOf(route));
    written.Put(source);
    written.Put(destination);
    if (sends) written.Put(route.slot);
    WriteRoute(route.view, sources.box(source), destinations.box(destination), written);
  }

  VarintWriter out = BeginTable();
  for (const int value : {sends ? 0 : 1, rank, table_.source_ranks(), table_.destination_ranks()})
    out.Put(static_cast<uint64_t>(value));
  out.Put(epoch);
  sources.WriteTensors(trainer_tensors_, out);
  destinations.WriteTensors(inference_tensors_, out);
  (sends ? destinations : sources).WriteRanks(out);
  sources.WriteShards(out);
  destinations.WriteShards(out);
  out.Put(routes.size());
  out.PutRaw(written.bytes());
  destinations.WriteCopies(out);
  if (out.size() > kMaxTableBytes) return too_large(StrCat(out.size(), " bytes of at most ", kMaxTableBytes));
  return FinishTable(std::move(out));
}

}  // namespace weightcast::plan
