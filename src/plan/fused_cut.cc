#include "plan/fused_cut.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/strings.h"

namespace weightcast::plan {
namespace {

Status Bad(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

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

}  // namespace

std::optional<FusedCut> FindCut(const Layout& layout, int tensor, int dim) {
  const auto d = static_cast<size_t>(dim);
  const int64_t whole = layout.tensor(tensor).shape[d];
  std::optional<FusedCut> found;
  layout.ForEachBox(tensor, [&](int rank, const Box& box) {
    if (!found && box.size[d] != whole) found = {.rank = rank, .box = box};
  });
  return found;
}

FusedTensors FusedTensorsOf(const RoutingTable& table, const Layout& inference) {
  FusedTensors fused;
  const auto cuts = [](const Link& a, const Link& b) {
    return a.dst_tensor == b.dst_tensor;  // Links of one destination stand together.
  };
  for (auto at = table.links().begin();
       (at = std::adjacent_find(at, table.links().end(), cuts)) != table.links().end(); ++at)
    fused.emplace(inference.tensor(at->dst_tensor).name, at->dim);
  return fused;
}

Status CheckCutsAmongEngines(const FusedTensors* fused, const Layout& sources, const Layout& destinations) {
  for (int tensor = 0; tensor < destinations.tensors(); ++tensor) {
    if (destinations.not_sent(tensor)) continue;
    const TensorInfo& info = destinations.tensor(tensor);
    if (fused == nullptr) {
      const auto box = FindNewBox(sources, destinations, tensor);
      if (!box) continue;
      return Bad(StrCat("rank ", box->rank, " wants the box ", ToString(box->box), " of tensor '", info.name,
                        "', which no engine holds as it is; which tensors are fused is known only once "
                        "trainers have been planned"));
    }
    const auto known = fused->find(info.name);
    if (known == fused->end() || known->second >= static_cast<int>(info.shape.size())) continue;
    if (const auto cut = FindCut(destinations, tensor, known->second))
      return Bad(StrCat("tensor '", info.name, "' is fused along dimension ", known->second, ", and rank ",
                        cut->rank, " holds only a part of that (", ToString(cut->box),
                        "); register its views of the parts that the trainers hold instead"));
  }
  return Status::Ok();
}

}  // namespace weightcast::plan
