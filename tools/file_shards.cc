#include "tools/file_shards.h"

#include "base/strings.h"
#include "checkpoint/boxes.h"
#include "plan/box.h"

namespace weightcast::tools {

Result<FileShards> FileShards::Map(checkpoint::Checkpoint file, const plan::Layout& layout, int rank) {
  FileShards result(std::move(file));
  for (int i = 0; i < layout.tensors(); ++i) {
    auto box = layout.BoxOf(i, rank);
    if (!box) continue;
    const TensorInfo& tensor = layout.tensor(i);
    const auto bytes = static_cast<size_t>(BytesOf(tensor.dtype, plan::ElementsOf(*box)));
    WC_ASSIGN_OR_RETURN(const auto runs, checkpoint::RunsOf(tensor, *box, bytes));
    if (runs.count() > 1) {
      return Status(Code::kInvalidArgument, StrCat("the shard ", ToString(*box), " of tensor '", tensor.name,
                                                   "' is not one run of its file"));
    }
    const auto offset = static_cast<size_t>(runs.count() == 1 ? runs.At(0).src_offset : 0);
    const auto index = result.file_.Find(tensor.name);
    if (!index)
      return Status(Code::kInvalidArgument, StrCat("the checkpoint has no tensor '", tensor.name, "'"));
    const std::byte* data = result.file_.bytes(*index).data() + offset;
    // Trainers only read their shards.
    result.shards_.push_back({tensor, std::move(*box), const_cast<std::byte*>(data), {}, false});
  }
  return result;
}

}  // namespace weightcast::tools
