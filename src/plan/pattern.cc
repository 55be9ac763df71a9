#include "plan/pattern.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/advice.h"

namespace weightcast::plan {
namespace {

/// Mesh dimensions by falling stride: the order in which coordinates count ranks upwards.
struct StrideOrder {
  std::array<int, kMaxMeshDims> dim{};
  int count = 0;
};

StrideOrder OrderByStride(const Pattern& pattern) {
  StrideOrder order;
  order.count = static_cast<int>(pattern.mesh.size());
  std::iota(order.dim.begin(), order.dim.begin() + order.count, 0);
  // By hand: of std::sort on so few elements gcc 12 believes that it reads beyond them.
  const auto stride = [&](int place) { return pattern.mesh[order.dim[place]].stride; };
  for (int i = 1; i < order.count; ++i) {
    for (int at = i; at > 0 && stride(at) > stride(at - 1); --at) std::swap(order.dim[at], order.dim[at - 1]);
  }
  return order;
}

Status CheckStrides(const Pattern& pattern) {
  const StrideOrder order = OrderByStride(pattern);
  int64_t reach = 1;
  for (int i = order.count - 1; i >= 0; --i) {
    const MeshDim& dim = pattern.mesh[order.dim[i]];
    if (dim.size == 1) continue;
    if (dim.stride < reach)
      return InvalidArgument("a mesh stride of ", dim.stride,
                             " gives two places of its mesh the same rank; raise the stride");
    reach = int64_t{dim.stride} * dim.size;
  }
  return Status::Ok();
}

}  // namespace

bool FindAtPlace(std::span<const MeshDim> mesh, std::span<const int> place, const Shape& shape, Box& box) {
  box.offset.assign(shape.size(), 0);
  box.size.assign(shape.begin(), shape.end());
  for (size_t m = 0; m < mesh.size(); ++m) {
    const MeshDim& dim = mesh[m];
    if (dim.shard_dim == kReplicate) continue;
    int64_t& size = box.size[dim.shard_dim];
    const int64_t chunk = (size + dim.size - 1) / dim.size;
    const int64_t begin = std::min(chunk * place[m], size);
    box.offset[dim.shard_dim] += begin;
    size = std::min(begin + chunk, size) - begin;
  }
  return std::find(box.size.begin(), box.size.end(), 0) == box.size.end();
}

int Pattern::last_rank() const {
  int rank = first_rank;
  for (const MeshDim& dim : mesh) rank += (dim.size - 1) * dim.stride;
  return rank;
}

Status CheckPattern(const Pattern& pattern, int dims, int ranks) {
  if (pattern.mesh.size() > static_cast<size_t>(kMaxMeshDims))
    return InvalidArgument("a mesh of ", pattern.mesh.size(), " dimensions; at most ", kMaxMeshDims,
                           " are allowed");
  int64_t last = pattern.first_rank;
  for (const MeshDim& dim : pattern.mesh) {
    if (dim.size < 1 || dim.size > kMaxRanks || dim.stride < 1 || dim.stride > kMaxRanks)
      return InvalidArgument("a mesh dimension of size ", dim.size, " and stride ", dim.stride,
                             "; both must be between 1 and ", kMaxRanks);
    if (dim.shard_dim < kReplicate || dim.shard_dim >= dims)
      return InvalidArgument("a mesh cuts dimension ", dim.shard_dim, " of a tensor of ", dims,
                             " dimensions; name one that it has");
    last += int64_t{dim.size - 1} * dim.stride;
  }
  if (pattern.first_rank < 0 || last >= ranks)
    return InvalidArgument("a mesh over ranks ", pattern.first_rank, " to ", last, " of a layout of ", ranks,
                           " ranks; use ranks below that");
  return CheckStrides(pattern);
}

void ExpandPattern(const Pattern& pattern, int shift, const Shape& shape, const BoxVisitor& visit) {
  const StrideOrder order = OrderByStride(pattern);
  std::array<int, kMaxMeshDims> place{};
  int rank = pattern.first_rank + shift;
  Box box;
  for (;;) {
    if (FindAtPlace(pattern.mesh, place, shape, box)) visit(rank, box);
    int i = order.count - 1;
    for (; i >= 0; --i) {
      const MeshDim& dim = pattern.mesh[order.dim[i]];
      rank += dim.stride;
      if (++place[order.dim[i]] < dim.size) break;
      rank -= dim.stride * dim.size;
      place[order.dim[i]] = 0;
    }
    if (i < 0) return;
  }
}

bool FindInPattern(const Pattern& pattern, int rank, const Shape& shape, Box& box) {
  const StrideOrder order = OrderByStride(pattern);
  std::array<int, kMaxMeshDims> place{};
  int rest = rank - pattern.first_rank;
  if (rest < 0) return false;
  for (int i = 0; i < order.count; ++i) {
    const MeshDim& dim = pattern.mesh[order.dim[i]];
    if (dim.size == 1) continue;
    place[order.dim[i]] = rest / dim.stride;
    if (place[order.dim[i]] >= dim.size) return false;
    rest %= dim.stride;
  }
  return rest == 0 && FindAtPlace(pattern.mesh, place, shape, box);
}

}  // namespace weightcast::plan
