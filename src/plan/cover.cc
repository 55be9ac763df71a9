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

Box BoxOfIndex(const BoxIndex& index, int box) {
  const auto offset = index.offset(box);
  const auto extent = index.extent(box);
  return {Shape(offset.begin(), offset.end()), Shape(extent.begin(), extent.end())};
}

Status CheckDisjoint(const TensorInfo& tensor, const DistinctBoxes& boxes, const BoxIndex& index) {
  for (int i = 0; i < index.size(); ++i) {
    int other = -1;
    index.Query(index.offset(i), index.extent(i), [&](int hit) {
      if (hit != i) other = hit;
      return other < 0;
    });
    if (other < 0) continue;
    return {Code::kInvalidArgument,
            StrCat("tensor '", tensor.name, "': the box ", ToString(BoxOfIndex(index, i)), " of rank ",
                   boxes.HoldersOf(i).front(), " overlaps ", ToString(BoxOfIndex(index, other)), " of rank ",
                   boxes.HoldersOf(other).front(), "; shards must be equal or disjoint")};
  }
  return Status::Ok();
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
    out.holders.push_back(ranks[order[i]]);
    ++out.first.back();
  }
  return out;
}

Status CheckCover(const TensorInfo& tensor, std::span<const int> ranks, std::span<const int64_t> coords) {
  const int64_t wanted = weightcast::ElementsOf(tensor.shape);
  if (wanted == 0) return Status::Ok();
  if (ranks.empty()) {
    return {Code::kInvalidArgument, StrCat("tensor '", tensor.name, "' ", ToString(tensor.shape),
                                           ": no rank holds any of it; register it or declare it not sent")};
  }
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
  return {Code::kInvalidArgument, StrCat("tensor '", tensor.name, "' ", ToString(tensor.shape),
                                         ": no rank holds ", what, "; register the missing shard")};
}

}  // namespace weightcast::plan
