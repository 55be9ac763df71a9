#include "checkpoint/boxes.h"

#include "base/strings.h"
#include "plan/box.h"

namespace weightcast::checkpoint {

Result<plan::Segments> RunsOf(const TensorInfo& tensor, const Box& box, size_t box_bytes) {
  WC_RETURN_IF_ERROR(plan::CheckTensor(tensor));
  WC_RETURN_IF_ERROR(plan::CheckBox(box, tensor));
  auto runs = plan::Segments::Of(WholeOf(tensor.shape), tensor.dtype, box, tensor.dtype, box, box.offset);
  if (!runs.ok()) return Error(runs.status().code(), "tensor ", tensor.name, ": ", runs.status().message());
  if (static_cast<uint64_t>(runs->dst_bytes()) != box_bytes)
    return Error(Code::kOutOfBounds, "tensor ", tensor.name, ", box ", ToString(box), " has ",
                 runs->dst_bytes(), " bytes, but the buffer has ", box_bytes,
                 "; please report this as a bug");
  return runs;
}

}  // namespace weightcast::checkpoint
