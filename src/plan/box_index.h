#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/box.h"

namespace weightcast::plan {

/// Finds those of many boxes that meet a given one: a binary tree of bounding boxes, so that a
/// tensor cut into thousands of irregular boxes is not searched box by box. Immutable.
class BoxIndex {
 public:
  /// `coords` holds per box `dims` offsets, then `dims` sizes. No box is empty.
  BoxIndex(int dims, std::vector<int64_t> coords);

  [[nodiscard]] int size() const { return static_cast<int>(order_.size()); }
  [[nodiscard]] std::span<const int64_t> offset(int box) const { return Half(box, 0); }
  [[nodiscard]] std::span<const int64_t> extent(int box) const { return Half(box, 1); }

  /// Calls fn(int box) for every box that shares an element with the given one, in no particular
  /// order, until fn returns false.
  template <typename Fn>
  void Query(std::span<const int64_t> offset, std::span<const int64_t> extent, Fn&& fn) const;

 private:
  struct Node {
    std::array<int64_t, kMaxDims> begin;
    std::array<int64_t, kMaxDims> end;
    int first = 0;  ///< Boxes order_[first, last).
    int last = 0;
    int left = -1;  ///< -1: a leaf.
    int right = -1;
  };

  [[nodiscard]] std::span<const int64_t> Half(int box, int half) const {
    return {coords_.data() + (static_cast<size_t>(box) * 2 + half) * dims_, static_cast<size_t>(dims_)};
  }
  int BuildNode(int first, int last);
  void Bound(Node& node) const;
  int WidestDim(const Node& node) const;

  int dims_;
  std::vector<int64_t> coords_;
  std::vector<int> order_;
  std::vector<Node> nodes_;
};

template <typename Fn>
void BoxIndex::Query(std::span<const int64_t> offset, std::span<const int64_t> extent, Fn&& fn) const {
  const auto meets_box = [&](int box) {
    const int64_t* other = coords_.data() + static_cast<size_t>(box) * 2 * dims_;
    for (int d = 0; d < dims_; ++d) {
      if (other[d] >= offset[d] + extent[d] || other[d] + other[d + dims_] <= offset[d]) return false;
    }
    return true;
  };
  const auto meets_node = [&](const Node& node) {
    for (int d = 0; d < dims_; ++d) {
      if (node.begin[d] >= offset[d] + extent[d] || node.end[d] <= offset[d]) return false;
    }
    return true;
  };
  std::array<int, 64> stack;  // Median splits: no deeper than the bits of an int.
  int depth = 0;
  if (!nodes_.empty()) stack[depth++] = 0;
  while (depth > 0) {
    const Node& node = nodes_[stack[--depth]];
    if (!meets_node(node)) continue;
    if (node.left >= 0) {
      stack[depth++] = node.right;
      stack[depth++] = node.left;
      continue;
    }
    for (int i = node.first; i < node.last; ++i) {
      if (meets_box(order_[i]) && !fn(order_[i])) return;
    }
  }
}

}  // namespace weightcast::plan
