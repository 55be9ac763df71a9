#include "tools/demo/weights.h"

#include <algorithm>

#include "base/strings.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generate.h"
#include "checkpoint/writer.h"
#include "plan/models.h"
#include "tools/common/files.h"
#include "tools/common/stop.h"

namespace weightcast::tools {

Result<std::vector<TensorInfo>> DemoTensors(const DemoOptions& options) {
  if (!options.checkpoint.empty()) {
    WC_ASSIGN_OR_RETURN(const auto file, checkpoint::Checkpoint::Open(options.checkpoint));
    return file.tensors();
  }
  WC_ASSIGN_OR_RETURN(const DType dtype, ParseDType(options.dtype));
  return plan::PresetModel(options.model, dtype);
}

Status WriteGenerated(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors,
                      const DemoWatcher& watcher) {
  WC_ASSIGN_OR_RETURN(const auto header,
                      checkpoint::MakeHeader(checkpoint::ReferenceOrder(tensors), {{"format", "pt"}}));
  if (static_cast<uint64_t>(header.file_bytes()) > FreeDisk(path.parent_path())) {
    return Error(Code::kExhausted, "the model file needs ",
                 HumanBytes(static_cast<double>(header.file_bytes())), " in ", path.parent_path().string(),
                 ", which has less free; set TMPDIR to a folder with room");
  }
  WC_ASSIGN_OR_RETURN(auto writer, checkpoint::SafetensorsWriter::Create(path, header, {.sync = false}));
  std::vector<std::byte> piece(4 << 20);
  for (const auto& tensor : header.tensors) {
    const auto size = static_cast<uint64_t>(tensor.end - tensor.begin);
    for (uint64_t at = 0; at < size; at += piece.size()) {
      WC_RETURN_IF_ERROR(CheckStop());
      const auto part = std::span(piece).first(std::min<uint64_t>(piece.size(), size - at));
      checkpoint::FillRange(tensor.info.name, tensor.info.dtype, /*version=*/1, at, part);
      WC_RETURN_IF_ERROR(writer.Append(part));
    }
    if (watcher.on_step) watcher.on_step(0, "writing the model file");
  }
  return writer.Finish();
}

}  // namespace weightcast::tools
