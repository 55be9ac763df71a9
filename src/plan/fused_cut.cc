#include "plan/fused_cut.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/advice.h"

namespace weightcast::plan {
namespace {

/// The first box of `tensor` that no source holds as it is.
std::optional<FusedCut> FindNewBox(const Layout& sources, const Layout& destinations, int tensor) {
  std::set<std::pair<Shape, Shape>> held;
  if (const auto source = sources.Find(destinations.tensor(tensor).name)) {
    sources.ForEachBox(*source, [&](int, const Box& box) { held.emplace(box.offset, box.size); });
  }
  std::optional<FusedCut> found;
  destinations.ForEachBox(tensor, [&](int rank, const Box& box) {
    if (!found && !held.contains({box.offset, box.size})) found = {.rank = rank, .box = box};
  });
  return found;
}

using Interval = std::pair<int64_t, int64_t>;  ///< Begin and end along the fused dimension.

/// Whether these intervals of one rank lie at several places, each inside one part.
bool SayParts(std::vector<Interval> held, const std::vector<int64_t>& starts) {
  std::sort(held.begin(), held.end());
  const auto part_of = [&](int64_t at) { return std::ranges::upper_bound(starts, at); };
  int places = 0;
  Interval place{0, 0};
  for (const auto& [begin, end] : held) {
    if (part_of(begin) != part_of(end - 1)) return false;
    const bool touches = places > 0 && begin <= place.second && part_of(begin) == part_of(place.first);
    if (!touches) ++places;
    place = {begin, touches ? std::max(place.second, end) : end};
  }
  return places > 1;
}

}  // namespace

std::optional<FusedCut> FindCut(const Layout& layout, int tensor, const FusedParts& fusion) {
  const auto d = static_cast<size_t>(fusion.dim);
  const int64_t whole = layout.tensor(tensor).shape[d];
  std::vector<Interval> held;  // By the rank of `cut`, of that dimension only a part.
  std::optional<FusedCut> cut;
  std::optional<FusedCut> found;
  const auto judge = [&] {
    if (cut && !found && !SayParts(std::exchange(held, {}), fusion.starts)) found = cut;
    cut.reset();
  };
  layout.ForEachBox(tensor, [&](int rank, const Box& box) {
    if (found || box.size[d] == whole) return;
    if (cut && cut->rank != rank) judge();
    if (!cut) cut = {.rank = rank, .box = box};
    held.emplace_back(box.offset[d], box.offset[d] + box.size[d]);
  });
  judge();
  return found;
}

FusedTensors FusedTensorsOf(const RoutingTable& table, const Layout& inference) {
  FusedTensors fused;
  const auto alike = [](const Link& a, const Link& b) {
    return a.dst_tensor == b.dst_tensor;  // Links of one destination stand together, by place.
  };
  const auto end = table.links().end();
  for (auto at = table.links().begin(); (at = std::adjacent_find(at, end, alike)) != end;) {
    FusedParts& fusion = fused[inference.tensor(at->dst_tensor).name];
    fusion.dim = at->dim;
    for (const int tensor = at->dst_tensor; at != end && at->dst_tensor == tensor; ++at)
      fusion.starts.push_back(at->dst_start);
  }
  return fused;
}

Status CheckCutsAmongEngines(const FusedTensors* fused, const Layout& sources, const Layout& destinations) {
  for (int tensor = 0; tensor < destinations.tensors(); ++tensor) {
    if (destinations.not_sent(tensor)) continue;
    const TensorInfo& info = destinations.tensor(tensor);
    if (fused == nullptr) {
      const auto box = FindNewBox(sources, destinations, tensor);
      if (!box) continue;
      return InvalidArgument(
          "rank ", box->rank, " needs the box ", ToString(box->box), " of tensor '", info.name,
          "', which no engine holds as it is; start the trainers first, whose rules say which "
          "tensors are fused");
    }
    const auto known = fused->find(info.name);
    if (known == fused->end() || known->second.dim >= static_cast<int>(info.shape.size())) continue;
    if (const auto cut = FindCut(destinations, tensor, known->second))
      return InvalidArgument(
          "tensor '", info.name, "' is fused along dimension ", known->second.dim, ", and rank ", cut->rank,
          " holds only a part of that (", ToString(cut->box),
          "); register its rows of each part as several shards of the tensor, or views of the "
          "parts that the trainers hold");
  }
  return Status::Ok();
}

}  // namespace weightcast::plan
