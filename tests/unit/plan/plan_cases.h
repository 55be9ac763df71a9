#pragma once

// Random layouts and rules for property tests, and an oracle that carries a plan out element by element.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/layout_builder.h"
#include "plan/planner.h"

namespace weightcast::plan::testing {

/// Draws a number between two bounds, both included: from RapidCheck, so that failures shrink.
using Pick = std::function<int64_t(int64_t low, int64_t high)>;

/// Where elements of a destination tensor come from, known by whoever made the case: elements
/// [begin, end) of dimension `dim` lie `shift` further in the same dimension of the source.
struct Origin {
  std::string source;
  int dim = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t shift = 0;
};

/// A random pair of layouts with rules between them.
struct Case {
  Layout trainers;
  Layout inference;
  NameRules rules;
  std::map<std::string, std::vector<Origin>> origins;  ///< By destination tensor; none: it is not sent.

  [[nodiscard]] PlanRequest Request(Strategy strategy = Strategy::kBalanced) const {
    return {trainers, inference, rules, strategy};
  }
};

/// Tensors that stay whole along a dimension.
using Uncut = std::map<std::string, int>;
inline int UncutDim(const Uncut& uncut, const TensorInfo& tensor) {
  const auto at = uncut.find(tensor.name);
  return at == uncut.end() ? -1 : at->second;
}

/// Cuts a box into at most `count` boxes at random places, but not along `uncut`.
inline void CutAtRandom(const Pick& pick, Box box, int64_t count, std::vector<Box>& out, int uncut = -1) {
  std::vector<size_t> dims;
  for (size_t d = 0; d < box.size.size(); ++d) {
    if (box.size[d] > 1 && static_cast<int>(d) != uncut) dims.push_back(d);
  }
  if (count < 2 || dims.empty()) {
    out.push_back(box);
    return;
  }
  const size_t dim = dims[static_cast<size_t>(pick(0, static_cast<int64_t>(dims.size()) - 1))];
  const int64_t at = pick(1, box.size[dim] - 1);
  Box rest = box;
  box.size[dim] = at;
  rest.offset[dim] += at;
  rest.size[dim] -= at;
  CutAtRandom(pick, box, count / 2, out, uncut);
  CutAtRandom(pick, rest, count - count / 2, out, uncut);
}

/// Which rank holds which box of a tensor, all of it, some of it more than once.
inline std::vector<std::pair<int, Box>> RandomBoxes(const Pick& pick, const TensorInfo& tensor, int ranks,
                                                    int uncut) {
  const bool several = pick(0, 1) == 1;  // Boxes of one tensor at one rank, equal ones too.
  std::vector<Box> boxes;
  CutAtRandom(pick, WholeOf(tensor.shape), pick(1, several ? 3 * ranks : ranks), boxes, uncut);
  std::vector<std::pair<int, Box>> out;
  if (several) {
    for (const Box& box : boxes)
      for (int64_t times = std::max<int64_t>(pick(-1, 3), 1); times > 0; --times)
        out.emplace_back(static_cast<int>(pick(0, ranks - 1)), box);
    return out;
  }
  const auto first = static_cast<size_t>(pick(0, ranks - 1));
  for (size_t i = 0; i < static_cast<size_t>(ranks); ++i) {
    const int rank = static_cast<int>((first + i) % static_cast<size_t>(ranks));
    if (i < boxes.size()) {
      out.emplace_back(rank, boxes[i]);
    } else if (pick(0, 1) == 1) {
      out.emplace_back(rank, boxes[static_cast<size_t>(pick(0, static_cast<int64_t>(boxes.size()) - 1))]);
    }
  }
  return out;
}

inline Pattern RandomPattern(const Pick& pick, const TensorInfo& tensor, int ranks, int uncut) {
  const int dims = static_cast<int>(tensor.shape.size());
  Pattern pattern;
  int stride = 1;
  for (int64_t m = pick(0, 2); m > 0; --m) {
    const int size = static_cast<int>(pick(1, std::max(1, ranks / stride)));
    const int dim = static_cast<int>(pick(kReplicate, dims - 1));
    pattern.mesh.push_back({size, stride, dim == uncut ? kReplicate : dim});
    stride *= size;
  }
  if (pick(0, 1) == 1) std::reverse(pattern.mesh.begin(), pattern.mesh.end());
  pattern.first_rank = static_cast<int>(pick(0, ranks - pattern.last_rank() - 1));
  return pattern;
}

template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().ToString());
  return std::move(*result);
}
inline void Must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

/// A layout of these tensors over some ranks: patterns, uneven ones, irregular boxes, several of them at one
/// rank, replicas.
inline Layout RandomLayout(const Pick& pick, const std::vector<TensorInfo>& tensors, int max_ranks,
                           const Uncut& uncut = {}) {
  const int ranks = static_cast<int>(pick(1, max_ranks));
  LayoutBuilder builder(ranks);
  std::vector<std::vector<Holding>> holdings(static_cast<size_t>(ranks));
  for (const TensorInfo& tensor : tensors) {
    if (pick(0, 1) == 1) {
      Must(builder.AddPattern(tensor, RandomPattern(pick, tensor, ranks, UncutDim(uncut, tensor))));
      continue;
    }
    for (const auto& [rank, box] : RandomBoxes(pick, tensor, ranks, UncutDim(uncut, tensor)))
      holdings[static_cast<size_t>(rank)].push_back({tensor, box});
  }
  for (int rank = 0; rank < ranks; ++rank) Must(builder.AddRank(rank, holdings[static_cast<size_t>(rank)]));
  return Must(builder.Build());
}

/// Makes the tensors and rules of a case, unit by unit; each unit has names of its own.
class CaseMaker {
 public:
  explicit CaseMaker(const Pick& pick) : pick_(pick) {}

  Case Make() {
    for (int64_t units = pick_(1, 4); units > 0; --units) AddUnit(std::to_string(units));
    out_.trainers = RandomLayout(pick_, sources_, 6);
    std::vector<Layout> engines;
    for (int64_t e = pick_(1, 3); e > 0; --e)
      engines.push_back(RandomLayout(pick_, destinations_, 4, uncut_));
    out_.inference = Must(JoinEngines(engines));
    return std::move(out_);
  }

 private:
  Shape RandomShape() {
    Shape shape;
    for (int64_t dims = pick_(0, 3); dims > 0; --dims) shape.push_back(pick_(0, 12) == 0 ? 0 : pick_(1, 7));
    return shape;
  }
  DType RandomDType() {
    constexpr DType kAll[] = {DType::kBF16, DType::kF32, DType::kF16, DType::kU8, DType::kI64};
    return kAll[pick_(0, 4)];
  }
  DType MaybeCast(DType dtype) {
    constexpr DType kFloats[] = {DType::kBF16, DType::kF32, DType::kF16};
    return dtype == DType::kU8 || dtype == DType::kI64 ? dtype : kFloats[pick_(0, 2)];
  }
  static int64_t Rows(const Shape& shape, int dim) {
    return shape.empty() ? 1 : shape[static_cast<size_t>(dim)];
  }

  void AddWhole(const std::string& from, const std::string& to, const TensorInfo& source) {
    destinations_.push_back({to, MaybeCast(source.dtype), source.shape});
    out_.origins[to] = {{.source = from, .end = Rows(source.shape, 0)}};
  }

  void AddUnit(const std::string& id) {
    const TensorInfo whole{"from." + id, RandomDType(), RandomShape()};
    switch (pick_(0, 5)) {
      case 0:
        sources_.push_back(whole);
        return AddWhole(whole.name, whole.name, whole);
      case 1:
        sources_.push_back(whole);
        out_.rules.rules.emplace_back(Rename{"fro{*}." + id, "t{*}." + id});
        return AddWhole(whole.name, "tm." + id, whole);
      case 2:
        sources_.push_back(whole);
        out_.rules.rules.emplace_back(Tie{whole.name, {"tie.a" + id, "tie.b" + id}});
        AddWhole(whole.name, "tie.a" + id, whole);
        return AddWhole(whole.name, "tie.b" + id, whole);
      case 3:
        return AddNotSent(whole, id);
      default:
        return AddParts(whole, id, pick_(0, 1) == 1);
    }
  }

  void AddNotSent(const TensorInfo& whole, const std::string& id) {
    sources_.push_back(whole);
    destinations_.push_back({"buffer." + id, RandomDType(), RandomShape()});
    out_.rules.rules.emplace_back(NotSent{"{*}." + id, Side::kBoth});
  }

  /// A fusion of several tensors into one, or the other way round.
  void AddParts(TensorInfo whole, const std::string& id, bool fuse) {
    if (whole.shape.empty()) whole.shape = {pick_(1, 5)};
    const int dim = static_cast<int>(pick_(0, static_cast<int64_t>(whole.shape.size()) - 1));
    int64_t& rows = whole.shape[static_cast<size_t>(dim)];
    std::vector<TensorInfo> parts;
    std::vector<std::string> names;
    rows = 0;
    for (int64_t n = pick_(2, 3); n > 0; --n) {
      TensorInfo part = whole;
      part.name = "part" + std::to_string(n) + "." + id;
      part.shape[static_cast<size_t>(dim)] = pick_(1, 5);
      names.push_back("part" + std::to_string(n) + ".{*}");
      parts.push_back(part);
    }
    std::vector<Origin> origins;
    for (TensorInfo& part : parts) {
      const int64_t extent = part.shape[static_cast<size_t>(dim)];
      if (fuse) {
        part.dtype = MaybeCast(whole.dtype);
        origins.push_back({part.name, dim, rows, rows + extent, -rows});
      } else {
        part.dtype = MaybeCast(whole.dtype);
        out_.origins[part.name] = {{whole.name, dim, 0, extent, rows}};
      }
      rows += extent;
    }
    // One rule for each unit: the placeholder would fit the parts of others too.
    for (std::string& name : names) name.replace(name.find("{*}"), 3, id);
    if (fuse) {
      out_.rules.rules.emplace_back(Fuse{names, whole.name, dim});
      uncut_[whole.name] = dim;
      out_.origins[whole.name] = origins;
      sources_.insert(sources_.end(), parts.begin(), parts.end());
      destinations_.push_back(whole);
    } else {
      out_.rules.rules.emplace_back(Split{whole.name, names, dim});
      sources_.push_back(whole);
      destinations_.insert(destinations_.end(), parts.begin(), parts.end());
    }
  }

  const Pick& pick_;
  Case out_;
  std::vector<TensorInfo> sources_;
  std::vector<TensorInfo> destinations_;
  Uncut uncut_;  ///< Fused ones.
};

inline Case RandomCase(const Pick& pick) { return CaseMaker(pick).Make(); }

inline std::vector<Route> RoutesOf(const RoutingTable& table) {
  std::vector<Route> routes;
  for (int64_t i = 0; i < table.size(); ++i) routes.push_back(table.At(i));
  return routes;
}

/// A place in a shard's row-major buffer, or -1 if it lies outside.
inline int64_t PlaceIn(const Box& shard, const Shape& coords) {
  int64_t place = 0;
  for (size_t d = 0; d < coords.size(); ++d) {
    if (coords[d] < shard.offset[d] || coords[d] >= shard.offset[d] + shard.size[d]) return -1;
    place = place * shard.size[d] + coords[d] - shard.offset[d];
  }
  return place;
}

/// The number of the box of a rank to which a route goes or (without a copy) from which it comes; -1: of
/// none.
inline int ShardOf(const std::vector<Box>& boxes, const Box& part, uint32_t copy = 0) {
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (!Contains(boxes[i], part)) continue;
    const size_t wanted = i + copy;
    return wanted < boxes.size() && boxes[wanted] == boxes[i] ? static_cast<int>(wanted) : -1;
  }
  return -1;
}

/// Carries out the routes one element at a time. Empty if every element of every destination shard
/// was written exactly once, with the element it should have, out of a shard that its source holds;
/// otherwise the first thing that was wrong. Knows nothing of the verifier or the planner.
inline std::string CarryOut(const Case& random, const std::vector<Route>& routes) {
  // By destination rank, tensor and number of the box there.
  std::map<std::tuple<int, int, int>, std::vector<int>> writes;
  for (const Route& route : routes) {
    const std::string& from = random.trainers.tensor(route.src_tensor).name;
    const std::string& to = random.inference.tensor(route.dst_tensor).name;
    const auto destinations = random.inference.BoxesOf(route.dst_tensor, route.dst_rank);
    const int shard = ShardOf(destinations, {route.dst_offset, route.src_box.size}, route.dst_copy);
    if (shard < 0 || ShardOf(random.trainers.BoxesOf(route.src_tensor, route.src_rank), route.src_box) < 0 ||
        !random.origins.contains(to))
      return "a route between shards that are not there";
    const Box& destination = destinations[static_cast<size_t>(shard)];
    auto& counts = writes[{route.dst_rank, route.dst_tensor, shard}];
    counts.resize(static_cast<size_t>(ElementsOf(destination)), 0);
    for (int64_t i = 0; i < ElementsOf(route.src_box); ++i) {
      Shape at = route.src_box.offset;
      Shape target = route.dst_offset;
      int64_t rest = i;
      for (size_t d = at.size(); d-- > 0;) {
        at[d] += rest % route.src_box.size[d];
        target[d] += rest % route.src_box.size[d];
        rest /= route.src_box.size[d];
      }
      const int64_t place = PlaceIn(destination, target);
      const auto& origins = random.origins.at(to);
      const auto origin = std::find_if(origins.begin(), origins.end(), [&](const Origin& candidate) {
        const auto d = static_cast<size_t>(candidate.dim);
        return target.empty() || (target[d] >= candidate.begin && target[d] < candidate.end);
      });
      if (origin == origins.end() || origin->source != from) return "an element comes from the wrong tensor";
      if (!target.empty()) target[static_cast<size_t>(origin->dim)] += origin->shift;
      if (target != at) return "an element comes from the wrong place";
      if (++counts[static_cast<size_t>(place)] > 1) return "an element is written twice";
    }
  }
  for (const auto& [name, unused] : random.origins) {
    std::string missing;
    const int tensor = *random.inference.Find(name);
    std::map<int, int> seen;  // Boxes of each rank.
    random.inference.ForEachBox(tensor, [&](int rank, const Box& box) {
      const auto& counts = writes[{rank, tensor, seen[rank]++}];
      if (static_cast<int64_t>(counts.size()) != ElementsOf(box) ||
          std::count(counts.begin(), counts.end(), 1) != ElementsOf(box))
        missing = "an element of " + name + " is not written";
    });
    if (!missing.empty()) return missing;
  }
  return {};
}

}  // namespace weightcast::plan::testing
