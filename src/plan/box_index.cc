#include "plan/box_index.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace weightcast::plan {
namespace {
constexpr int kLeafBoxes = 8;
}  // namespace

BoxIndex::BoxIndex(int dims, std::vector<int64_t> coords) : dims_(dims), coords_(std::move(coords)) {
  // The boxes of a scalar are all alike: one stands for them.
  const size_t boxes = dims_ == 0 ? 1 : coords_.size() / (2 * static_cast<size_t>(dims_));
  order_.resize(boxes);
  std::iota(order_.begin(), order_.end(), 0);
  if (boxes > 0) BuildNode(0, static_cast<int>(boxes));
}

void BoxIndex::Bound(Node& node) const {
  node.begin.fill(std::numeric_limits<int64_t>::max());
  node.end.fill(0);
  for (int i = node.first; i < node.last; ++i) {
    const int64_t* box = coords_.data() + static_cast<size_t>(order_[i]) * 2 * dims_;
    for (int d = 0; d < dims_; ++d) {
      node.begin[d] = std::min(node.begin[d], box[d]);
      node.end[d] = std::max(node.end[d], box[d] + box[d + dims_]);
    }
  }
}

int BoxIndex::WidestDim(const Node& node) const {
  int widest = 0;
  int64_t width = -1;
  for (int d = 0; d < dims_; ++d) {
    // Measured between the first and the last beginning: a dimension that no box cuts has none.
    int64_t low = std::numeric_limits<int64_t>::max();
    int64_t high = 0;
    for (int i = node.first; i < node.last; ++i) {
      const int64_t begin = coords_[static_cast<size_t>(order_[i]) * 2 * dims_ + d];
      low = std::min(low, begin);
      high = std::max(high, begin);
    }
    if (high - low > width) {
      width = high - low;
      widest = d;
    }
  }
  return widest;
}

int BoxIndex::BuildNode(int first, int last) {
  const int index = static_cast<int>(nodes_.size());
  Node node;
  node.first = first;
  node.last = last;
  Bound(node);
  nodes_.push_back(node);
  if (last - first <= kLeafBoxes) return index;
  const int dim = WidestDim(node);
  const int middle = first + (last - first) / 2;
  std::nth_element(order_.begin() + first, order_.begin() + middle, order_.begin() + last, [&](int a, int b) {
    return coords_[static_cast<size_t>(a) * 2 * dims_ + dim] <
           coords_[static_cast<size_t>(b) * 2 * dims_ + dim];
  });
  const int left = BuildNode(first, middle);
  const int right = BuildNode(middle, last);
  nodes_[index].left = left;
  nodes_[index].right = right;
  return index;
}

}  // namespace weightcast::plan
