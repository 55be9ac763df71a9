#include "plan/layout.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "base/strings.h"
#include "plan/layout_assembler.h"
#include "plan/pattern.h"

namespace weightcast::plan {

std::optional<int> Layout::Find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(
      by_name_, name, {}, [&](int32_t index) -> std::string_view { return tensor(index).name; });
  if (at == by_name_.end() || tensor(*at).name != name) return std::nullopt;
  return *at;
}

std::span<const Layout::Part> Layout::parts(int tensor) const {
  const uint32_t first = first_part_[static_cast<size_t>(tensor)];
  return {parts_.data() + first, first_part_[static_cast<size_t>(tensor) + 1] - first};
}

void Layout::ForEachBoxOfPart(int tensor, const Part& part, const BoxVisitor& visit) const {
  const Shape& shape = this->tensor(tensor).shape;
  if (part.pattern >= 0) {
    ExpandPattern(patterns_[static_cast<size_t>(part.pattern)], part.first_rank, shape, visit);
    return;
  }
  const int64_t* coord = box_coords_.data() + part.first_coord;
  const size_t dims = shape.size();
  Box box;
  for (uint32_t i = 0; i < part.boxes; ++i, coord += 2 * dims) {
    box.offset.assign(coord, coord + dims);
    box.size.assign(coord + dims, coord + 2 * dims);
    visit(box_ranks_[part.first_box + i], box);
  }
}

void Layout::ForEachBox(int tensor, const BoxVisitor& visit) const {
  for (const Part& part : parts(tensor)) ForEachBoxOfPart(tensor, part, visit);
}

uint32_t RankBoxes::Find(std::span<const int64_t> at, uint32_t copy) const {
  const size_t dims = at.size();
  const auto box = [&](uint32_t i) { return std::span(coords + size_t{i} * 2 * dims, 2 * dims); };
  const auto holds = [&](uint32_t i) {
    for (size_t d = 0; d < dims; ++d)
      if (at[d] < box(i)[d] || at[d] - box(i)[d] >= box(i)[d + dims]) return false;
    return true;
  };
  // A box that has the element does not begin after it.
  uint32_t first = 0;
  uint32_t end = count;
  while (first < end) {
    const uint32_t middle = first + (end - first) / 2;
    const auto begin = box(middle).first(dims);
    if (std::lexicographical_compare(at.begin(), at.end(), begin.begin(), begin.end())) {
      end = middle;
    } else {
      first = middle + 1;
    }
  }
  while (end > 0 && !holds(end - 1)) --end;
  if (end == 0) return count;
  uint32_t original = end - 1;
  while (original > 0 && std::ranges::equal(box(original - 1), box(end - 1))) --original;
  return copy < end - original ? original + copy : count;
}

// Looks at the list of ranks only if it has gaps: asked for in any order, that would come from memory.
std::pair<uint32_t, uint32_t> Layout::PlacesInList(const Part& part, int rank) const {
  if (rank < part.first_rank) return {0, 0};
  const auto place = static_cast<uint32_t>(rank - part.first_rank);
  if (part.gapless) return {place, place < part.boxes ? place + 1 : place};
  const int32_t* const begin = box_ranks_.data() + part.first_box;
  const int32_t* const end = begin + part.boxes;
  const int32_t* const first = std::lower_bound(begin, end, rank);
  const int32_t* last = first != end && *first == rank ? first + 1 : first;
  if (part.several && first != last) last = std::upper_bound(first, end, rank);
  return {static_cast<uint32_t>(first - begin), static_cast<uint32_t>(last - begin)};
}

RankBoxes Layout::FindCoords(int tensor, int rank) const {
  static constexpr int64_t kNoCoords = 0;  // Stands for the coordinates of a scalar, of which there are none.
  for (const Part& part : parts(tensor)) {
    if (part.pattern >= 0) continue;
    const auto [first, last] = PlacesInList(part, rank);
    if (first == last) continue;
    if (part.dims == 0) return {&kNoCoords, last - first};
    return {box_coords_.data() + part.first_coord + size_t{first} * 2 * part.dims, last - first};
  }
  return {};
}

bool Layout::FindPatternBox(int tensor, int rank, Box& box) const {
  for (const Part& part : parts(tensor)) {
    if (part.pattern < 0) continue;
    const Pattern& pattern = patterns_[static_cast<size_t>(part.pattern)];
    if (FindInPattern(pattern, rank - part.first_rank, this->tensor(tensor).shape, box)) return true;
  }
  return false;
}

namespace {

void CopyBox(const int64_t* coords, size_t dims, Box& box) {
  box.offset.assign(coords, coords + dims);
  box.size.assign(coords + dims, coords + 2 * dims);
}

}  // namespace

bool Layout::FindBox(int tensor, int rank, std::span<const int64_t> at, Box& box) const {
  if (FindPatternBox(tensor, rank, box)) return true;
  const RankBoxes boxes = FindCoords(tensor, rank);
  const uint32_t number = boxes.count > 1 ? boxes.Find(at) : 0;
  if (number == boxes.count) return false;
  CopyBox(boxes.coords + size_t{number} * 2 * at.size(), at.size(), box);
  return true;
}

std::vector<Box> Layout::BoxesOf(int tensor, int rank) const {
  Box box;
  if (FindPatternBox(tensor, rank, box)) return {box};
  const RankBoxes boxes = FindCoords(tensor, rank);
  const size_t dims = this->tensor(tensor).shape.size();
  std::vector<Box> out(boxes.count);
  for (uint32_t i = 0; i < boxes.count; ++i) CopyBox(boxes.coords + size_t{i} * 2 * dims, dims, out[i]);
  return out;
}

std::optional<Box> Layout::BoxOf(int tensor, int rank) const {
  const std::vector<Box> boxes = BoxesOf(tensor, rank);
  return boxes.empty() ? std::nullopt : std::optional(boxes.front());
}

int64_t Layout::BytesOfRank(int rank) const {
  int64_t bytes = 0;
  for (int t = 0; t < tensors(); ++t)
    for (const Box& box : BoxesOf(t, rank)) bytes += BytesOf(tensor(t).dtype, ElementsOf(box));
  return bytes;
}

void LayoutAssembler::AddTensor(const TensorInfo& tensor, bool not_sent) {
  layout_.infos_.push_back(tensor);
  layout_.not_sent_.push_back(not_sent);
  layout_.first_part_.push_back(static_cast<uint32_t>(layout_.parts_.size()));
}

void LayoutAssembler::AddPatternPart(const Pattern& pattern, int shift) {
  const auto [at, is_new] = pattern_index_.try_emplace(pattern, static_cast<int>(layout_.patterns_.size()));
  if (is_new) layout_.patterns_.push_back(pattern);
  layout_.parts_.push_back({.pattern = at->second, .first_rank = shift});
}

void LayoutAssembler::AddBoxPart(std::span<const int> ranks, std::span<const int64_t> coords) {
  const bool several = std::ranges::adjacent_find(ranks) != ranks.end();
  const bool gapless = !several && ranks.back() - ranks.front() + 1 == std::ssize(ranks);
  layout_.several_ = layout_.several_ || several;
  layout_.parts_.push_back({.first_rank = ranks.front(),
                            .first_box = layout_.box_ranks_.size(),
                            .first_coord = layout_.box_coords_.size(),
                            .boxes = static_cast<uint32_t>(ranks.size()),
                            .gapless = gapless,
                            .several = several,
                            .dims = static_cast<uint8_t>(coords.size() / ranks.size() / 2)});
  layout_.box_ranks_.insert(layout_.box_ranks_.end(), ranks.begin(), ranks.end());
  layout_.box_coords_.insert(layout_.box_coords_.end(), coords.begin(), coords.end());
}

Result<Layout> LayoutAssembler::Finish(int ranks) && {
  layout_.ranks_ = ranks;
  layout_.first_part_.push_back(static_cast<uint32_t>(layout_.parts_.size()));
  auto& order = layout_.by_name_;
  order.resize(layout_.infos_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto& infos = layout_.infos_;
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return infos[a].name < infos[b].name; });
  const auto twice = std::adjacent_find(order.begin(), order.end(),
                                        [&](int32_t a, int32_t b) { return infos[a].name == infos[b].name; });
  if (twice != order.end())
    return Error(Code::kInvalidArgument, "tensor '", infos[*twice].name, "' is given twice; give each once");
  return std::move(layout_);
}

namespace {

Status CheckSameAcross(std::span<const Layout> engines, int first, int tensor_there, int second,
                       int tensor_here) {
  const TensorInfo& a = engines[static_cast<size_t>(first)].tensor(tensor_there);
  const TensorInfo& b = engines[static_cast<size_t>(second)].tensor(tensor_here);
  if (a == b) return Status::Ok();
  return Error(Code::kInvalidArgument, "tensor '", a.name, "' is ", NameOf(a.dtype), " ", ToString(a.shape),
               " in every engine before this one that has it, but ", NameOf(b.dtype), " ", ToString(b.shape),
               " in this one; all engines must hold the same dtype and global shape");
}

/// Where a tensor is found in the engines that have it: (engine, index there).
struct Places {
  std::vector<std::pair<int, int>> at;
  bool not_sent = true;
};

void CopyParts(const Layout& engine, int tensor, int shift, LayoutAssembler& out) {
  std::vector<int> ranks;
  std::vector<int64_t> coords;
  for (const Layout::Part& part : engine.parts(tensor)) {
    if (part.pattern >= 0) {
      out.AddPatternPart(engine.patterns()[static_cast<size_t>(part.pattern)], part.first_rank + shift);
      continue;
    }
    ranks.clear();
    coords.clear();
    engine.ForEachBoxOfPart(tensor, part, [&](int rank, const Box& box) {
      ranks.push_back(rank + shift);
      coords.insert(coords.end(), box.offset.begin(), box.offset.end());
      coords.insert(coords.end(), box.size.begin(), box.size.end());
    });
    out.AddBoxPart(ranks, coords);
  }
}

}  // namespace

Result<Layout> JoinEngines(std::span<const Layout> engines) {
  std::unordered_map<std::string_view, size_t> index;
  std::vector<Places> tensors;
  std::vector<int> shift{0};
  for (int e = 0; e < static_cast<int>(engines.size()); ++e) {
    const Layout& engine = engines[static_cast<size_t>(e)];
    for (int t = 0; t < engine.tensors(); ++t) {
      const auto [at, is_new] = index.try_emplace(engine.tensor(t).name, tensors.size());
      if (is_new) tensors.emplace_back();
      Places& places = tensors[at->second];
      if (!is_new)
        WC_RETURN_IF_ERROR(CheckSameAcross(engines, places.at.front().first, places.at.front().second, e, t));
      places.at.emplace_back(e, t);
      places.not_sent = places.not_sent && engine.not_sent(t);
    }
    shift.push_back(shift.back() + engine.ranks());
    if (shift.back() > kMaxRanks)
      return Error(Code::kInvalidArgument, "with this one, ", e + 1, " engines have ", shift.back(),
                   " ranks together; at most ", kMaxRanks, " are allowed: use fewer engines");
  }
  LayoutAssembler out;
  for (const Places& places : tensors) {
    const auto [engine, tensor] = places.at.front();
    out.AddTensor(engines[static_cast<size_t>(engine)].tensor(tensor), places.not_sent);
    for (const auto& [e, t] : places.at) {
      const Layout& from = engines[static_cast<size_t>(e)];
      // An engine that wants no bytes of a tensor which others want takes no part in it.
      if (from.not_sent(t) == places.not_sent) CopyParts(from, t, shift[static_cast<size_t>(e)], out);
    }
  }
  return std::move(out).Finish(shift.back());
}

}  // namespace weightcast::plan
