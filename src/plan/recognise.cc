#include <algorithm>
#include <utility>
#include <vector>

#include "plan/pattern.h"

namespace weightcast::plan {
namespace {

/// The boxes of one tensor as a grid: per dimension the different intervals, and for each cell of
/// the grid the ranks that hold it.
class Grid {
 public:
  /// False if the boxes are no grid with equally many holders of each cell.
  bool Arrange(size_t dims, std::span<const int> ranks, std::span<const int64_t> coords);

  /// The smallest rank of each cell along `dim`, the other coordinates being 0.
  [[nodiscard]] std::vector<int> FirstRanksAlong(size_t dim) const;
  [[nodiscard]] std::vector<int> RanksOfFirstCell() const {
    return {holders_.begin(), holders_.begin() + static_cast<ptrdiff_t>(replicas_)};
  }

 private:
  using Interval = std::pair<int64_t, int64_t>;

  bool FindIntervals(size_t dims, size_t boxes, std::span<const int64_t> coords);
  size_t CellOf(std::span<const int64_t> box) const;

  std::vector<std::vector<Interval>> intervals_;
  size_t cells_ = 1;
  size_t replicas_ = 0;
  std::vector<int> holders_;  ///< By cell, then ascending.
};

bool Grid::FindIntervals(size_t dims, size_t boxes, std::span<const int64_t> coords) {
  intervals_.assign(dims, {});
  for (size_t d = 0; d < dims; ++d) {
    auto& found = intervals_[d];
    for (size_t i = 0; i < boxes; ++i) {
      const auto box = coords.subspan(i * 2 * dims, 2 * dims);
      const Interval interval{box[d], box[d + dims]};
      if (found.empty() || found.back() != interval) found.push_back(interval);
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    cells_ *= found.size();
    if (cells_ > boxes) return false;
  }
  replicas_ = boxes / cells_;
  return replicas_ * cells_ == boxes;
}

size_t Grid::CellOf(std::span<const int64_t> box) const {
  size_t cell = 0;
  const size_t dims = intervals_.size();
  for (size_t d = 0; d < dims; ++d) {
    const Interval interval{box[d], box[d + dims]};
    const auto at = std::lower_bound(intervals_[d].begin(), intervals_[d].end(), interval);
    cell = cell * intervals_[d].size() + static_cast<size_t>(at - intervals_[d].begin());
  }
  return cell;
}

bool Grid::Arrange(size_t dims, std::span<const int> ranks, std::span<const int64_t> coords) {
  if (!FindIntervals(dims, ranks.size(), coords)) return false;
  holders_.assign(ranks.size(), -1);
  std::vector<size_t> filled(cells_, 0);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const size_t cell = CellOf(coords.subspan(i * 2 * dims, 2 * dims));
    if (filled[cell] == replicas_) return false;
    holders_[cell * replicas_ + filled[cell]++] = ranks[i];
  }
  return true;
}

std::vector<int> Grid::FirstRanksAlong(size_t dim) const {
  size_t step = 1;
  for (size_t d = dim + 1; d < intervals_.size(); ++d) step *= intervals_[d].size();
  std::vector<int> first(intervals_[dim].size());
  for (size_t i = 0; i < first.size(); ++i) first[i] = holders_[i * step * replicas_];
  return first;
}

/// Appends the mesh dimensions, outermost first, whose ranks come in this sequence (which begins at
/// the mesh's first rank). False if the sequence is no nest of equal steps.
bool AppendMesh(std::vector<int> sequence, int shard_dim, std::vector<MeshDim>& mesh) {
  std::vector<MeshDim> inner_first;
  while (sequence.size() > 1) {
    const int stride = sequence[1] - sequence[0];
    if (stride <= 0) return false;
    size_t run = 2;
    while (run < sequence.size() && sequence[run] - sequence[run - 1] == stride) ++run;
    if (sequence.size() % run != 0) return false;
    std::vector<int> outer;
    for (size_t i = 0; i < sequence.size(); i += run) outer.push_back(sequence[i]);
    inner_first.push_back({static_cast<int>(run), stride, shard_dim});
    sequence = std::move(outer);
  }
  mesh.insert(mesh.end(), inner_first.rbegin(), inner_first.rend());
  return true;
}

/// Whether the pattern gives just these boxes.
bool Reproduces(const Pattern& pattern, const Shape& shape, std::span<const int> ranks,
                std::span<const int64_t> coords) {
  size_t next = 0;
  bool same = true;
  ExpandPattern(pattern, 0, shape, [&](int rank, const Box& box) {
    if (!same || next == ranks.size() || ranks[next] != rank) {
      same = false;
      return;
    }
    const auto expected = coords.subspan(next * 2 * shape.size(), 2 * shape.size());
    same =
        std::equal(box.offset.begin(), box.offset.end(), expected.begin()) &&
        std::equal(box.size.begin(), box.size.end(), expected.begin() + static_cast<ptrdiff_t>(shape.size()));
    ++next;
  });
  return same && next == ranks.size();
}

}  // namespace

std::optional<Pattern> RecognisePattern(const Shape& shape, std::span<const int> ranks,
                                        std::span<const int64_t> coords) {
  Grid grid;
  if (ranks.empty() || std::ranges::adjacent_find(ranks) != ranks.end() ||
      !grid.Arrange(shape.size(), ranks, coords))
    return std::nullopt;
  Pattern pattern{.first_rank = ranks.front(), .mesh = {}};
  if (!AppendMesh(grid.RanksOfFirstCell(), kReplicate, pattern.mesh)) return std::nullopt;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (!AppendMesh(grid.FirstRanksAlong(d), static_cast<int>(d), pattern.mesh)) return std::nullopt;
  }
  // The grid's origin need not be held by the lowest rank (a mesh numbered backwards): no pattern.
  if (grid.RanksOfFirstCell().front() != ranks.front()) return std::nullopt;
  if (!CheckPattern(pattern, static_cast<int>(shape.size()), kMaxRanks).ok()) return std::nullopt;
  if (!Reproduces(pattern, shape, ranks, coords)) return std::nullopt;
  return pattern;
}

}  // namespace weightcast::plan
