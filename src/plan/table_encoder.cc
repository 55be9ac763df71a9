#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/strings.h"
#include "plan/table_format.h"
#include "plan/table_layout.h"
#include "plan/varint.h"

namespace weightcast::plan {
namespace {

constexpr size_t kRoutesAhead = 16;

/// Numbers keys in the order in which they first turn up: open addressing, no memory per key.
class KeyNumbers {
 public:
  explicit KeyNumbers(size_t keys) : slots_(std::bit_ceil(2 * keys + 2), Slot{0, kFree}) {}

  /// The number of a key, and whether it is new. Takes at most as many keys as were promised.
  std::pair<uint32_t, bool> Find(uint64_t key) {
    const size_t mask = slots_.size() - 1;
    size_t at = (key * 0x9e3779b97f4a7c15 >> 32) & mask;
    for (; slots_[at].number != kFree; at = (at + 1) & mask) {
      if (slots_[at].key == key) return {slots_[at].number, false};
    }
    slots_[at] = {key, next_};
    return {next_++, true};
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  struct Slot {
    uint64_t key;
    uint32_t number;
  };
  std::vector<Slot> slots_;
  uint32_t next_ = 0;
};

/// The tensors and shards of one side that a rank's routes name, numbered as they turn up.
class NamedShards {
 public:
  NamedShards(const Layout& layout, size_t routes)
      : layout_(layout), local_(static_cast<size_t>(layout.tensors()), -1), numbers_(routes) {}

  uint32_t Number(int rank, int tensor);
  /// To be called once all are numbered: look-ups side by side wait for memory together.
  void FindBoxes();
  /// Offsets, then sizes.
  [[nodiscard]] const int64_t* box(uint32_t shard) const { return coords_.data() + shards_[shard].coord; }
  void WriteTensors(VarintWriter& out) const;
  void WriteShards(VarintWriter& out) const;
  [[nodiscard]] std::vector<int> Ranks() const;

 private:
  struct Shard {
    int rank;
    int tensor;  ///< In tensors_.
    size_t coord;
  };

  const Layout& layout_;
  std::vector<int> local_;  ///< Per tensor of the layout its place in tensors_, or -1.
  std::vector<int> tensors_;
  KeyNumbers numbers_;
  std::vector<Shard> shards_;
  std::vector<int64_t> coords_;
};

uint32_t NamedShards::Number(int rank, int tensor) {
  const auto [number, is_new] =
      numbers_.Find(uint64_t{static_cast<uint32_t>(rank)} << 32 | static_cast<uint32_t>(tensor));
  if (!is_new) return number;
  int& local = local_[static_cast<size_t>(tensor)];
  if (local < 0) {
    local = static_cast<int>(tensors_.size());
    tensors_.push_back(tensor);
  }
  shards_.push_back({rank, local, 0});
  return number;
}

void NamedShards::FindBoxes() {
  // Irregular boxes lie far apart: all are sent for before the first is needed.
  std::vector<const int64_t*> kept;
  kept.reserve(shards_.size());
  for (const Shard& shard : shards_) {
    kept.push_back(layout_.FindCoords(tensors_[static_cast<size_t>(shard.tensor)], shard.rank));
    __builtin_prefetch(kept.back());
  }
  Box box;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const int tensor = tensors_[static_cast<size_t>(shards_[i].tensor)];
    shards_[i].coord = coords_.size();
    if (kept[i] != nullptr) {
      coords_.insert(coords_.end(), kept[i], kept[i] + 2 * layout_.tensor(tensor).shape.size());
      continue;
    }
    layout_.FindBox(tensor, shards_[i].rank, box);  // A verified table names no shard that is not there.
    coords_.insert(coords_.end(), box.offset.begin(), box.offset.end());
    coords_.insert(coords_.end(), box.size.begin(), box.size.end());
  }
}

void NamedShards::WriteTensors(VarintWriter& out) const {
  out.Put(tensors_.size());
  for (const int tensor : tensors_) {
    const TensorInfo& info = layout_.tensor(tensor);
    out.PutText(info.name);
    out.PutText(NameOf(info.dtype));
    out.Put(info.shape.size());
    for (const int64_t size : info.shape) out.Put(static_cast<uint64_t>(size));
  }
}

void NamedShards::WriteShards(VarintWriter& out) const {
  out.Put(shards_.size());
  for (size_t i = 0; i < shards_.size(); ++i) {
    out.Put(static_cast<uint64_t>(shards_[i].rank));
    out.Put(static_cast<uint64_t>(shards_[i].tensor));
    const size_t end = i + 1 < shards_.size() ? shards_[i + 1].coord : coords_.size();
    for (size_t c = shards_[i].coord; c < end; ++c) out.Put(static_cast<uint64_t>(coords_[c]));
  }
}

std::vector<int> NamedShards::Ranks() const {
  std::vector<int> ranks;
  for (const Shard& shard : shards_) {
    if (ranks.empty() || ranks.back() != shard.rank) ranks.push_back(shard.rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void WritePeers(const std::vector<int>& peers, VarintWriter& out) {
  out.Put(peers.size());
  int last = 0;
  for (const int peer : peers) {
    out.Put(static_cast<uint64_t>(peer - last));
    last = peer;
  }
}

void WriteRoute(const RouteView& route, const int64_t* source, const int64_t* destination,
                VarintWriter& out) {
  const size_t dims = route.size.size();
  bool whole = true;
  bool origin = true;
  for (size_t d = 0; d < dims; ++d) {
    whole = whole && route.src_offset[d] == source[d] && route.size[d] == source[dims + d];
    origin = origin && route.dst_offset(static_cast<int>(d)) == destination[d];
  }
  out.Put((route.link->transform == Transform::kCast ? kRouteCasts : 0U) |
          (whole ? kRouteIsWholeSource : 0U) | (origin ? kRouteAtOrigin : 0U));
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

/// Numbers of a route's shards.
struct Ends {
  uint32_t source;
  uint32_t destination;
};

void WriteRoutes(bool sends, const RoutingTable& table, const std::vector<uint32_t>& routes,
                 const std::vector<Ends>& ends, const NamedShards& sources, const NamedShards& destinations,
                 VarintWriter& out) {
  out.Put(routes.size());
  for (size_t i = 0; i < routes.size(); ++i) {
    // The boxes of a rank's routes lie all over the table: sent for some routes ahead.
    if (i + kRoutesAhead < routes.size())
      __builtin_prefetch(table.View(routes[i + kRoutesAhead]).src_offset.data());
    const auto [source, destination] = ends[i];
    out.Put(source);
    out.Put(destination);
    if (sends) out.Put(table.SlotOf(routes[i]));
    WriteRoute(table.View(routes[i]), sources.box(source), destinations.box(destination), out);
  }
}

}  // namespace

Result<std::string> EncodeRankTable(RankTable::Role role, int rank, uint32_t epoch, const Layout& trainers,
                                    const Layout& inference, const RoutingTable& table) {
  const bool sends = role == RankTable::Role::kTrainer;
  if (rank < 0 || rank >= (sends ? table.source_ranks() : table.destination_ranks()))
    return Status(Code::kInvalidArgument,
                  StrCat("the plan has no ", sends ? "trainer " : "inference rank ", rank));
  const std::vector<uint32_t> routes = RoutesOf(role, rank, table);
  const auto too_large = [&](std::string_view what) {
    return Status(Code::kExhausted, StrCat("the table of ", sends ? "trainer " : "inference rank ", rank,
                                           " has ", what, "; plan with fewer or larger shards"));
  };
  if (routes.size() > kMaxRoutesOfRank)
    return too_large(StrCat(routes.size(), " routes of at most ", kMaxRoutesOfRank));

  NamedShards sources(trainers, routes.size());
  NamedShards destinations(inference, routes.size());
  std::vector<Ends> ends;
  ends.reserve(routes.size());
  for (const uint32_t number : routes) {
    const RouteView route = table.View(number);
    ends.push_back({sources.Number(route.src_rank, route.link->src_tensor),
                    destinations.Number(route.dst_rank, route.link->dst_tensor)});
  }
  sources.FindBoxes();
  destinations.FindBoxes();
  VarintWriter out = BeginTable();
  for (const int value : {sends ? 0 : 1, rank, table.source_ranks(), table.destination_ranks()})
    out.Put(static_cast<uint64_t>(value));
  out.Put(epoch);
  sources.WriteTensors(out);
  destinations.WriteTensors(out);
  WritePeers((sends ? destinations : sources).Ranks(), out);
  sources.WriteShards(out);
  destinations.WriteShards(out);
  WriteRoutes(sends, table, routes, ends, sources, destinations, out);
  if (out.size() > kMaxTableBytes) return too_large(StrCat(out.size(), " bytes of at most ", kMaxTableBytes));
  return FinishTable(std::move(out));
}

}  // namespace weightcast::plan
