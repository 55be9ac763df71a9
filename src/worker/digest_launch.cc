#include "worker/digest_launch.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "plan/box.h"

namespace weightcast::worker {
namespace {

constexpr int64_t kDigestBlock = kernels::kDigestBlock;
// One of a tensor's dimensions is that of the rows, or of one index: the blocks of a row take its place.
static_assert(plan::kMaxDims <= kernels::kBoxDims);

/// A dimension of the box: its size, and from one index to the next in memory and in the tensor.
struct Dim {
  int64_t size = 1;
  int64_t stride = 0;
  int64_t step = 0;
};

/// The box as rows that are contiguous in the tensor. In bits, where not said otherwise, and once they are
/// known to be whole, in bytes.
struct Rows {
  int64_t bits = 0;  ///< Of an element.
  int64_t distance = 0;
  int64_t place = 0;
  std::vector<Dim> dims;  ///< Of rows, outermost first.
  Dim row;                ///< `size`: elements.

  [[nodiscard]] bool apart() const { return row.size > 1 && row.stride != bits; }
  void ForEach(auto&& fn) {
    fn(distance);
    fn(place);
    for (Dim& dim : dims) {
      fn(dim.stride);
      fn(dim.step);
    }
  }
};

Rows RowsOf(const TensorInfo& tensor, const DigestSource& source) {
  const GatherSource& memory = source.memory;
  const Shape steps = DenseStrides(tensor.shape);
  Rows rows;
  rows.bits = BitsOf(tensor.dtype);
  for (size_t d = 0; d < steps.size(); ++d) {
    const Dim next{memory.box.size[d], memory.strides[d] * rows.bits, steps[d] * rows.bits};
    rows.distance += (memory.box.offset[d] - memory.shard.offset[d]) * next.stride;
    rows.place += source.place[d] * next.step;
    if (next.size == 1) continue;
    if (!rows.dims.empty() && rows.dims.back().stride == next.stride * next.size &&
        rows.dims.back().step == next.step * next.size) {
      rows.dims.back() = {rows.dims.back().size * next.size, next.stride, next.step};
    } else {
      rows.dims.push_back(next);
    }
  }
  rows.row = {.size = 1, .stride = rows.bits, .step = rows.bits};
  if (!rows.dims.empty() && rows.dims.back().step == rows.bits) {
    rows.row = rows.dims.back();
    rows.dims.pop_back();
  }
  return rows;
}

/// In bytes from now on. False if a row, or a part of one that counts, ends inside a byte.
bool TakeBytes(Rows& rows, const DigestSource& source) {
  bool whole = true;
  for (const int64_t elements : {rows.row.size, source.first, source.count})
    whole = whole && elements * rows.bits % 8 == 0;
  rows.ForEach([&](int64_t& distance) {
    whole = whole && distance % 8 == 0;
    distance /= 8;
  });
  return whole && (!rows.apart() || rows.bits % 8 == 0);
}

/// The rows of which elements count; bytes.
struct Counted {
  int64_t row = 0;  ///< Of a whole row.
  int64_t first = 0;
  int64_t rows = 0;
  int64_t begin = 0;  ///< In the first row.
  int64_t end = 0;    ///< In the last row.
};

Counted CountedOf(const Rows& rows, const DigestSource& source) {
  const int64_t row = rows.row.size * rows.bits / 8;
  const int64_t begin = source.first * rows.bits / 8;
  const int64_t end = begin + source.count * rows.bits / 8;
  const int64_t first = begin / row;
  const int64_t last = (end - 1) / row;
  return {.row = row,
          .first = first,
          .rows = last - first + 1,
          .begin = begin - first * row,
          .end = end - last * row};
}

/// Where all that counts lies in one row, nothing else is left of the box.
void KeepOneRow(Rows& rows, Counted& counted) {
  for (size_t d = rows.dims.size(); d-- > 0; counted.first /= rows.dims[d].size) {
    rows.distance += counted.first % rows.dims[d].size * rows.dims[d].stride;
    rows.place += counted.first % rows.dims[d].size * rows.dims[d].step;
  }
  rows.dims.clear();
  rows.distance += rows.apart() ? counted.begin / (rows.bits / 8) * (rows.row.stride / 8) : counted.begin;
  rows.place += counted.begin;
  counted.row = counted.end -= counted.begin;
  counted.begin = 0;
}

/// The most bytes that may be read at once at places that are multiples of it.
uint32_t UnitOf(const Rows& rows, uint64_t source) {
  uint64_t apart = source - static_cast<uint64_t>(rows.place);
  for (const Dim& dim : rows.dims) apart |= static_cast<uint64_t>(dim.stride - dim.step);
  return static_cast<uint32_t>(std::min<uint64_t>(apart == 0 ? 16 : apart & -apart, 16));
}

int64_t MostBlocksOfARow(const Rows& rows, int64_t row) {
  const bool alike =
      std::ranges::all_of(rows.dims, [](const Dim& dim) { return dim.step % kDigestBlock == 0; });
  return alike ? (rows.place % kDigestBlock + row + kDigestBlock - 1) / kDigestBlock
               : (row + kDigestBlock - 2) / kDigestBlock + 1;
}

void SetBox(const Rows& rows, int64_t per_row, kernels::DigestParameters& p) {
  p.dims = static_cast<uint32_t>(rows.dims.size()) + 1;
  std::fill(p.size, p.size + kernels::kBoxDims, 1);
  p.size[kernels::kBoxDims - 1] = static_cast<uint64_t>(per_row);
  for (size_t d = 0; d < rows.dims.size(); ++d) {
    const size_t at = kernels::kBoxDims - p.dims + d;
    p.size[at] = static_cast<uint64_t>(rows.dims[d].size);
    p.stride[at] = rows.dims[d].stride;
    p.step[at] = rows.dims[d].step;
  }
}

}  // namespace

std::optional<kernels::DigestParameters> DigestLaunch(const digest::TensorKey& key,
                                                      const DigestSource& source) {
  Rows rows = RowsOf(key.tensor(), source);
  if (!TakeBytes(rows, source)) return std::nullopt;
  Counted counted = CountedOf(rows, source);
  if (counted.rows == 1) KeepOneRow(rows, counted);
  const int64_t per_row = MostBlocksOfARow(rows, counted.row);
  kernels::DigestParameters p{};
  p.source = reinterpret_cast<uint64_t>(source.memory.data) + static_cast<uint64_t>(rows.distance);
  p.place = static_cast<uint64_t>(rows.place);
  std::ranges::copy(key.seeds(), p.seed);
  p.row = static_cast<uint64_t>(counted.row);
  p.begin = static_cast<uint64_t>(counted.begin);
  p.end = static_cast<uint64_t>(counted.end);
  p.first = static_cast<uint64_t>(counted.first * per_row);
  p.cells = static_cast<uint64_t>(counted.rows * per_row);
  p.apart = 1;
  p.unit = UnitOf(rows, p.source);
  if (rows.apart()) {
    p.apart = rows.row.stride / 8;
    p.unit = static_cast<uint32_t>(rows.bits / 8);
    p.shift = static_cast<uint32_t>(std::countr_zero(p.unit));
    if (p.source % p.unit != 0) return std::nullopt;
  }
  SetBox(rows, per_row, p);
  return p;
}

}  // namespace weightcast::worker
