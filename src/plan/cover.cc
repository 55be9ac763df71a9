#include "plan/cover.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/strings.h"
#include "plan/box_index.h"

namespace weightcast::plan {
namespace {

/// `coords`: offsets, then sizes.
Box BoxAt(std::span<const int64_t> coords) {
  const auto middle = coords.begin() + static_cast<ptrdiff_t>(coords.size() / 2);
  return {Shape(coords.begin(), middle), Shape(middle, coords.end())};
}

Box BoxOfIndex(const BoxIndex& index, int box) {
  const auto offset = index.offset(box);
  const auto extent = index.extent(box);
  return {Shape(offset.begin(), offset.end()), Shape(extent.begin(), extent.end())};
}

/// Two different boxes that share an element.
std::optional<std::pair<int, int>> FindOverlap(const BoxIndex& index) {
  for (int i = 0; i < index.size(); ++i) {
    int other = -1;
    index.Query(index.offset(i), index.extent(i), [&](int hit) {
      if (hit != i) other = hit;
      return other < 0;
    });
    if (other >= 0) return std::pair(i, other);
  }
  return std::nullopt;
}

Status CheckDisjoint(const TensorInfo& tensor, const DistinctBoxes& boxes, const BoxIndex& index) {
  const auto overlap = FindOverlap(index);
  if (!overlap) return Status::Ok();
  const auto [one, other] = *overlap;
  return Error(Code::kInvalidArgument, "tensor '", tensor.name, "': the box ",
               ToString(BoxOfIndex(index, one)), " of rank ", boxes.HoldersOf(one).front(), " overlaps ",
               ToString(BoxOfIndex(index, other)), " of rank ", boxes.HoldersOf(other).front(),
               "; give shards that are equal or disjoint");
}

Status CheckCopies(const TensorInfo& tensor, std::span<const int> ranks, std::span<const int64_t> coords) {
  const size_t width = 2 * tensor.shape.size();
  const auto box = [&](size_t i) { return coords.subspan(i * width, width); };
  int copies = 1;
  for (size_t i = 1; i < ranks.size(); ++i) {
    copies = ranks[i] == ranks[i - 1] && std::ranges::equal(box(i), box(i - 1)) ? copies + 1 : 1;
    if (copies > kMaxCopies)
      return Error(Code::kInvalidArgument, "tensor '", tensor.name, "': rank ", ranks[i], " holds the box ",
                   ToString(BoxAt(box(i))), " more than ", kMaxCopies, " times; register it fewer times");
  }
  return Status::Ok();
}

/// Holdings of one tensor.
Status CheckHoldingsOfTensor(std::string_view holder, std::span<const Holding* const> holdings) {
  const TensorInfo& tensor = holdings.front()->tensor;
  std::vector<int64_t> coords;
  std::vector<int> ranks;
  for (const Holding* holding : holdings) {
    if (holding->tensor != tensor)
      return Error(Code::kInvalidArgument, "tensor '", tensor.name, "' is ", NameOf(tensor.dtype), " ",
                   ToString(tensor.shape), " in one shard of ", holder, " and ",
                   NameOf(holding->tensor.dtype), " ", ToString(holding->tensor.shape),
                   " in another; give the same dtype and global shape");
    if (ElementsOf(holding->box) == 0) continue;
    coords.insert(coords.end(), holding->box.offset.begin(), holding->box.offset.end());
    coords.insert(coords.end(), holding->box.size.begin(), holding->box.size.end());
    ranks.push_back(0);
  }
  if (ranks.empty()) return Status::Ok();
  const int dims = static_cast<int>(tensor.shape.size());
  const BoxIndex index(dims, GroupEqual(dims, ranks, coords).coords);
  const auto overlap = FindOverlap(index);
  if (!overlap) return Status::Ok();
  return Error(Code::kInvalidArgument, "tensor '", tensor.name, "': the boxes ",
               ToString(BoxOfIndex(index, overlap->first)), " and ",
               ToString(BoxOfIndex(index, overlap->second)), " of ", holder,
               " overlap; give shards of one tensor that are equal or disjoint");
}

/// What of `region` lies outside the box `hit`, which it meets: a slab on either side per dimension.
void PushOutside(const Box& hit, Box region, std::vector<Box>& out) {
  for (size_t d = 0; d < region.offset.size(); ++d) {
    const int64_t begin = region.offset[d];
    const int64_t end = begin + region.size[d];
    const int64_t cut_begin = std::max(begin, hit.offset[d]);
    const int64_t cut_end = std::min(end, hit.offset[d] + hit.size[d]);
    const auto slab = [&](int64_t from, int64_t to) {
      if (from >= to) return;
      out.push_back(region);
      out.back().offset[d] = from;
      out.back().size[d] = to - from;
    };
    slab(cut_end, end);
    slab(begin, cut_begin);
    region.offset[d] = cut_begin;
    region.size[d] = cut_end - cut_begin;
  }
}

/// Some box that no box of the index touches, unless the search grows out of hand.
std::optional<Box> FindMissing(const TensorInfo& tensor, const BoxIndex& index) {
  std::vector<Box> regions{WholeOf(tensor.shape)};
  for (int64_t steps = 1000 + int64_t{100} * index.size(); steps > 0 && !regions.empty(); --steps) {
    const Box region = std::move(regions.back());
    regions.pop_back();
    int hit = -1;
    index.Query(region.offset, region.size, [&](int box) {
      hit = box;
      return false;
    });
    if (hit < 0) return region;
    PushOutside(BoxOfIndex(index, hit), region, regions);
  }
  return std::nullopt;
}

}  // namespace

void SortBoxesOfRanks(int dims, std::span<const int> ranks, std::vector<int64_t>& coords) {
  const size_t width = 2 * static_cast<size_t>(dims);
  std::vector<std::vector<int64_t>> boxes;
  for (size_t first = 0, last = 0; first < ranks.size(); first = last) {
    while (last < ranks.size() && ranks[last] == ranks[first]) ++last;
    if (last - first == 1) continue;
    boxes.clear();
    for (size_t i = first; i < last; ++i) {
      const auto box = coords.begin() + static_cast<ptrdiff_t>(i * width);
      boxes.emplace_back(box, box + static_cast<ptrdiff_t>(width));
    }
    std::sort(boxes.begin(), boxes.end());
    auto out = coords.begin() + static_cast<ptrdiff_t>(first * width);
    for (const auto& box : boxes) out = std::copy(box.begin(), box.end(), out);
  }
}

DistinctBoxes GroupEqual(int dims, std::span<const int> ranks, std::span<const int64_t> coords) {
  const size_t width = 2 * static_cast<size_t>(dims);
  const auto box = [&](uint32_t i) { return coords.subspan(i * width, width); };
  std::vector<uint32_t> order(ranks.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const auto left = box(a);
    const auto right = box(b);
    const auto differ = std::mismatch(left.begin(), left.end(), right.begin());
    return differ.first != left.end() ? *differ.first < *differ.second : a < b;
  });
  DistinctBoxes out;
  out.holders.reserve(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const auto here = box(order[i]);
    if (i == 0 || !std::equal(here.begin(), here.end(), box(order[i - 1]).begin())) {
      out.coords.insert(out.coords.end(), here.begin(), here.end());
      out.first.push_back(out.first.back());
    }
    // A rank with several copies of a box is one holder.
    const bool again = out.first.back() > out.first[out.size() - 1] && out.holders.back() == ranks[order[i]];
    if (again) continue;
    out.holders.push_back(ranks[order[i]]);
    ++out.first.back();
  }
  return out;
}

Status CheckCover(const TensorInfo& tensor, std::span<const int> ranks, std::span<const int64_t> coords) {
  const int64_t wanted = weightcast::ElementsOf(tensor.shape);
  if (wanted == 0) return Status::Ok();
  if (ranks.empty()) {
    return Error(Code::kInvalidArgument, "tensor '", tensor.name, "' ", ToString(tensor.shape),
                 ": no rank holds any of it; register the tensor or declare it not sent");
  }
  WC_RETURN_IF_ERROR(CheckCopies(tensor, ranks, coords));
  const int dims = static_cast<int>(tensor.shape.size());
  DistinctBoxes boxes = GroupEqual(dims, ranks, coords);
  const BoxIndex index(dims, boxes.coords);
  WC_RETURN_IF_ERROR(CheckDisjoint(tensor, boxes, index));
  // Disjoint boxes inside the tensor: their sum cannot exceed it.
  int64_t held = 0;
  for (int i = 0; i < index.size(); ++i) held += ElementsOf(BoxOfIndex(index, i));
  if (held == wanted) return Status::Ok();
  const auto missing = FindMissing(tensor, index);
  const std::string what =
      missing ? StrCat("the box ", ToString(*missing)) : StrCat(wanted - held, " of its elements");
  return Error(Code::kInvalidArgument, "tensor '", tensor.name, "' ", ToString(tensor.shape),
               ": no rank holds ", what,
               "; register the missing shard (or, to combine digests, give those of all ranks)");
}

Status CheckHoldings(std::string_view holder, std::span<const Holding> holdings) {
  std::vector<std::pair<std::string_view, size_t>> order;
  order.reserve(holdings.size());
  for (size_t i = 0; i < holdings.size(); ++i) order.emplace_back(holdings[i].tensor.name, i);
  std::sort(order.begin(), order.end());
  std::vector<const Holding*> alike;
  for (size_t first = 0, last = 0; first < order.size(); first = last) {
    alike.clear();
    for (; last < order.size() && order[last].first == order[first].first; ++last)
      alike.push_back(&holdings[order[last].second]);
    if (alike.size() > 1) WC_RETURN_IF_ERROR(CheckHoldingsOfTensor(holder, alike));
  }
  return Status::Ok();
}

}  // namespace weightcast::plan
