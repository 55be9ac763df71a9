#pragma once

#include <filesystem>
#include <vector>

#include "tools/demo/options.h"
#include "tools/demo/run.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast::tools {

/// The tensors of a demo's model: the checkpoint's, or the preset's. Reads headers only.
Result<std::vector<TensorInfo>> DemoTensors(const DemoOptions& options);

/// Writes version 1 of generated weights as a safetensors file.
/// Errors: kExhausted, with the numbers, when the disk has no room for it.
Status WriteGenerated(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors,
                      const DemoWatcher& watcher);

}  // namespace weightcast::tools
