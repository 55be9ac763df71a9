#include "worker/gather.h"

#include <algorithm>

#include "worker/convert.h"

namespace weightcast::worker {
namespace {

/// A place in a box, walked in row-major order.
class Walk {
 public:
  Walk(const GatherSource& source, int64_t first) : source_(source), index_(source.box.size.size()) {
    for (size_t d = index_.size(); d-- > 0;) {
      index_[d] = first % source.box.size[d];
      first /= source.box.size[d];
    }
  }
  /// Elements from the shard's first to this place.
  [[nodiscard]] int64_t Distance() const {
    int64_t distance = 0;
    for (size_t d = 0; d < index_.size(); ++d)
      distance += (source_.box.offset[d] - source_.shard.offset[d] + index_[d]) * source_.strides[d];
    return distance;
  }
  /// Elements from here to the end of the innermost row; 1 for a scalar.
  [[nodiscard]] int64_t RestOfRow() const {
    return index_.empty() ? 1 : source_.box.size.back() - index_.back();
  }
  [[nodiscard]] int64_t index(size_t dimension) const { return index_[dimension]; }
  void Advance(int64_t within_row) {
    if (index_.empty()) return;
    index_.back() += within_row;
    for (size_t d = index_.size(); d-- > 1 && index_[d] == source_.box.size[d];) {
      index_[d] = 0;
      ++index_[d - 1];
    }
  }

 private:
  const GatherSource& source_;
  std::vector<int64_t> index_;
};

}  // namespace

std::vector<int64_t> DenseStrides(const Shape& size) {
  std::vector<int64_t> strides(size.size(), 1);
  for (size_t d = size.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(size[d], 1);
  return strides;
}

bool IsDense(const Shape& size, const std::vector<int64_t>& strides) {
  const auto dense = DenseStrides(size);
  if (strides.size() != size.size()) return false;
  for (size_t d = 0; d < size.size(); ++d)
    if (size[d] != 1 && strides[d] != dense[d]) return ElementsOf(size) == 0;
  return true;
}

void Gather(const GatherSource& source, int64_t first, int64_t count, DType to, std::byte* target) {
  const int64_t step = source.strides.empty() ? 1 : source.strides.back();
  const int bits = BitsOf(source.dtype);
  if (IsDense(source.box.size, source.strides)) {
    const int64_t distance = Walk(source, 0).Distance() + first;
    return Convert(source.dtype, source.data + distance * bits / 8, to, target, count);
  }
  Walk walk(source, first);
  while (count > 0) {
    // A row whose elements do not touch goes one by one.
    const int64_t row = std::min(walk.RestOfRow(), count);
    const int64_t taken = step == 1 ? row : 1;
    const std::byte* from = source.data + walk.Distance() * bits / 8;
    for (int64_t i = 0; i < row; i += taken) {
      Convert(source.dtype, from, to, target, taken);
      from += step * bits / 8;
      target += BytesOf(to, taken);
    }
    walk.Advance(row);
    count -= row;
  }
}

Reach ReachOf(const GatherSource& source, int64_t first, int64_t count) {
  if (IsDense(source.box.size, source.strides)) {
    const int64_t least = Walk(source, 0).Distance() + first;
    return {least, least + count - 1};
  }
  const Walk begin(source, first);
  const Walk end(source, first + count - 1);
  Reach reach;
  bool whole = false;  // All places of this dimension occur.
  for (size_t d = 0; d < source.strides.size(); ++d) {
    const int64_t offset = source.box.offset[d] - source.shard.offset[d];
    const int64_t from = (offset + (whole ? 0 : begin.index(d))) * source.strides[d];
    const int64_t to = (offset + (whole ? source.box.size[d] - 1 : end.index(d))) * source.strides[d];
    reach.least += std::min(from, to);
    reach.greatest += std::max(from, to);
    whole = whole || begin.index(d) != end.index(d);
  }
  return reach;
}

}  // namespace weightcast::worker
