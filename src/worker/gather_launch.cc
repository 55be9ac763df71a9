#include "worker/gather_launch.h"

#include <algorithm>
#include <vector>

#include "kernels/gather.h"
#include "kernels/list.h"

namespace weightcast::worker {
namespace {

constexpr uint32_t kBlockThreads = 256;
constexpr uint64_t kMostBlocks = 1024;
constexpr uint64_t kGroup = 8;  ///< Elements that a cast takes at once.

struct CastKernel {
  DType from;
  DType to;
  const char* dense;
  const char* box;
};
#define WC_CAST_KERNEL(name, From, To) {DType::k##From, DType::k##To, "cast_" #name, "gather_" #name},
constexpr CastKernel kCasts[] = {WC_CASTS(WC_CAST_KERNEL)};
#undef WC_CAST_KERNEL

struct CopyKernel {
  uint64_t bytes;
  const char* name;
};
/// The widest first.
constexpr CopyKernel kCopies[] = {
    {16, "gather_16"}, {8, "gather_8"}, {4, "gather_4"}, {2, "gather_2"}, {1, "gather_1"}};

/// A box of elements in memory; `dims` without those of one element, neighbours merged.
struct Strided {
  struct Dim {
    uint64_t size = 1;
    int64_t stride = 0;  ///< Bytes.
  };
  uint64_t address = 0;
  uint64_t element = 0;  ///< Bytes.
  std::vector<Dim> dims;

  /// Whether elements of the innermost dimension lie side by side.
  [[nodiscard]] bool rows() const {
    return dims.empty() || dims.back().stride == static_cast<int64_t>(element);
  }
  [[nodiscard]] bool dense() const { return dims.size() <= 1 && rows(); }
  [[nodiscard]] uint64_t row() const { return dims.empty() ? 1 : dims.back().size; }
  /// Whether every row begins at a multiple of `bytes`.
  [[nodiscard]] bool RowsAt(uint64_t bytes) const {
    const auto fits = [&](const Dim& dim) { return dim.stride % static_cast<int64_t>(bytes) == 0; };
    return address % bytes == 0 && (dims.empty() || std::all_of(dims.begin(), dims.end() - 1, fits));
  }
};

Strided Merge(const GatherSource& source) {
  const auto element = static_cast<int64_t>(BitsOf(source.dtype) / 8);
  Strided box{.element = static_cast<uint64_t>(element), .dims = {}};
  int64_t distance = 0;
  for (size_t d = 0; d < source.box.size.size(); ++d) {
    distance += (source.box.offset[d] - source.shard.offset[d]) * source.strides[d] * element;
    const Strided::Dim next{static_cast<uint64_t>(source.box.size[d]), source.strides[d] * element};
    if (next.size == 1) continue;
    if (!box.dims.empty() && box.dims.back().stride == next.stride * static_cast<int64_t>(next.size)) {
      box.dims.back() = {box.dims.back().size * next.size, next.stride};
    } else {
      box.dims.push_back(next);
    }
  }
  box.address = reinterpret_cast<uint64_t>(source.data) + static_cast<uint64_t>(distance);
  return box;
}

/// Elements, counted in units of `per_unit` that lie side by side.
kernels::GatherParameters Parameters(const Strided& box, uint64_t first, uint64_t count, uint64_t target,
                                     uint64_t per_unit) {
  kernels::GatherParameters p{.source = box.address,
                              .target = target,
                              .first = first / per_unit,
                              .count = count / per_unit,
                              .dims = static_cast<uint32_t>(box.dims.size()),
                              .group = 0,
                              .size = {},
                              .stride = {}};
  std::fill(p.size, p.size + kernels::kBoxDims, 1);
  const size_t skip = kernels::kBoxDims - box.dims.size();
  for (size_t d = 0; d < box.dims.size(); ++d) {
    const bool last = d + 1 == box.dims.size();
    p.size[skip + d] = last ? box.dims[d].size / per_unit : box.dims[d].size;
    p.stride[skip + d] = last ? box.dims[d].stride * static_cast<int64_t>(per_unit) : box.dims[d].stride;
  }
  return p;
}

template <typename P>
device::Launch Make(const char* kernel, uint64_t units, const P& parameters) {
  const uint64_t blocks = std::clamp<uint64_t>((units + kBlockThreads - 1) / kBlockThreads, 1, kMostBlocks);
  return {.kernel = kernel,
          .blocks = static_cast<uint32_t>(blocks),
          .threads = kBlockThreads,
          .parameters = parameters};
}

std::optional<device::Launch> CopyLaunch(const Strided& box, uint64_t first, uint64_t count,
                                         uint64_t target) {
  for (const auto& [bytes, name] : kCopies) {
    if (bytes < box.element) break;
    const uint64_t per_unit = bytes / box.element;
    const bool whole = per_unit == 1 || (box.rows() && box.row() % per_unit == 0 && first % per_unit == 0 &&
                                         count % per_unit == 0);
    if (!whole || target % bytes != 0 || !box.RowsAt(bytes)) continue;
    return Make(name, count / per_unit, Parameters(box, first, count, target, per_unit));
  }
  return std::nullopt;
}

std::optional<device::Launch> CastLaunch(const CastKernel& kernel, const Strided& box, uint64_t first,
                                         uint64_t count, uint64_t target) {
  const auto to = static_cast<uint64_t>(BitsOf(kernel.to) / 8);
  if (box.address % box.element != 0 || target % to != 0) return std::nullopt;
  if (box.dense()) {
    const kernels::CastParameters p{
        .source = box.address + first * box.element, .target = target, .count = count};
    return Make(kernel.dense, count / kGroup + kGroup, p);
  }
  const bool groups = box.rows() && box.row() % kGroup == 0 && first % kGroup == 0 && count % kGroup == 0 &&
                      target % kLaunchAlignment == 0 && box.RowsAt(kLaunchAlignment);
  const uint64_t per_unit = groups ? kGroup : 1;
  auto p = Parameters(box, first, count, target, per_unit);
  p.group = groups ? 1 : 0;
  return Make(kernel.box, count / per_unit, p);
}

}  // namespace

std::optional<device::Launch> GatherLaunch(const GatherSource& source, int64_t first, int64_t count, DType to,
                                           const std::byte* target) {
  if (BitsOf(source.dtype) % 8 != 0) return std::nullopt;
  const Strided box = Merge(source);
  if (box.dims.size() > kernels::kBoxDims) return std::nullopt;
  const auto begin = static_cast<uint64_t>(first);
  const auto elements = static_cast<uint64_t>(count);
  const auto at = reinterpret_cast<uint64_t>(target);
  if (source.dtype == to) return CopyLaunch(box, begin, elements, at);
  const auto* const cast = std::find_if(std::begin(kCasts), std::end(kCasts), [&](const CastKernel& each) {
    return each.from == source.dtype && each.to == to;
  });
  if (cast == std::end(kCasts)) return std::nullopt;
  return CastLaunch(*cast, box, begin, elements, at);
}

}  // namespace weightcast::worker
