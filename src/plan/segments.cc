#include "plan/segments.h"

#include <algorithm>

#include "base/strings.h"

namespace weightcast::plan {
namespace {

/// One dimension of the route: how often, and how many elements lie between neighbours in each buffer.
struct Step {
  int64_t count;
  int64_t src_stride;
  int64_t dst_stride;
};

struct Steps {
  std::array<Step, kMaxDims> step;
  int count = 0;
};

/// The dimensions of the box, innermost first, neighbours merged where both buffers allow it.
Steps MergedSteps(const Box& src_shard, const Box& dst_shard, const Shape& size) {
  Steps steps;
  int64_t src_stride = 1;
  int64_t dst_stride = 1;
  for (size_t d = size.size(); d-- > 0;) {
    if (size[d] != 1) {
      Step* inner = steps.count > 0 ? &steps.step[steps.count - 1] : nullptr;
      if (inner != nullptr && inner->src_stride * inner->count == src_stride &&
          inner->dst_stride * inner->count == dst_stride) {
        inner->count *= size[d];
      } else {
        steps.step[steps.count++] = {size[d], src_stride, dst_stride};
      }
    }
    src_stride *= src_shard.size[d];
    dst_stride *= dst_shard.size[d];
  }
  return steps;
}

/// Elements from the beginning of a shard's buffer to a place in the tensor.
int64_t Distance(const Box& shard, const Shape& place) {
  int64_t elements = 0;
  for (size_t d = 0; d < place.size(); ++d) elements = elements * shard.size[d] + place[d] - shard.offset[d];
  return elements;
}

Status CheckInside(std::string_view side, const Box& shard, const Box& box) {
  if (shard.offset.size() == box.offset.size() && shard.size.size() == box.size.size() &&
      box.offset.size() == box.size.size() && Contains(shard, box))
    return Status::Ok();
  return Error(Code::kOutOfBounds, "the route's box ", ToString(box), " is not inside the ", side, " shard ",
               ToString(shard),
               "; run the same release of weightcast everywhere, and register the tensor again");
}

/// Bits to bytes; notes in `exact` whether that was possible.
int64_t WholeBytes(int64_t elements, DType dtype, bool& exact) {
  const int64_t bits = elements * BitsOf(dtype);
  exact = exact && bits % 8 == 0;
  return bits / 8;
}

}  // namespace

Result<Segments> Segments::Of(const Box& src_shard, DType src_dtype, const Box& dst_shard, DType dst_dtype,
                              const Box& src_box, const Shape& dst_offset) {
  WC_RETURN_IF_ERROR(CheckInside("source", src_shard, src_box));
  WC_RETURN_IF_ERROR(CheckInside("destination", dst_shard, Box{dst_offset, src_box.size}));
  Segments out;
  if (ElementsOf(src_box) == 0) return out;
  const Steps steps = MergedSteps(src_shard, dst_shard, src_box.size);
  // Where the innermost dimension that is not 1 is strided, a segment is one element.
  const bool has_segment = steps.count > 0 && steps.step[0].src_stride == 1 && steps.step[0].dst_stride == 1;
  const int64_t together = has_segment ? steps.step[0].count : 1;
  bool exact = true;
  if (together == ElementsOf(src_shard) && together == ElementsOf(dst_shard)) {
    // Whole shards may end inside a byte: the rest of that byte is theirs too.
    out.src_segment_ = BytesOf(src_dtype, together);
    out.dst_segment_ = BytesOf(dst_dtype, together);
  } else {
    out.src_segment_ = WholeBytes(together, src_dtype, exact);
    out.dst_segment_ = WholeBytes(together, dst_dtype, exact);
  }
  out.src_base_ = WholeBytes(Distance(src_shard, src_box.offset), src_dtype, exact);
  out.dst_base_ = WholeBytes(Distance(dst_shard, dst_offset), dst_dtype, exact);
  out.count_ = 1;
  for (int i = steps.count - 1; i >= (has_segment ? 1 : 0); --i) {
    const Step& step = steps.step[i];
    out.loop_[out.loops_++] = {step.count, WholeBytes(step.src_stride, src_dtype, exact),
                               WholeBytes(step.dst_stride, dst_dtype, exact)};
    out.count_ *= step.count;
  }
  if (exact) return out;
  return Error(Code::kInvalidArgument, "the box ", ToString(src_box), " of a tensor of ", NameOf(src_dtype),
               " begins or ends inside a byte; cut tensors of this dtype at whole bytes");
}

Segment Segments::At(int64_t number) const {
  Segment segment{src_base_, dst_base_, src_segment_, dst_segment_};
  for (int d = loops_ - 1; d >= 0; --d) {
    const int64_t index = number % loop_[d].count;
    number /= loop_[d].count;
    segment.src_offset += index * loop_[d].src_stride;
    segment.dst_offset += index * loop_[d].dst_stride;
  }
  return segment;
}

}  // namespace weightcast::plan
