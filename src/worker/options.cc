#include "worker/options.h"

namespace weightcast::worker {

Result<Settings> SettingsOf(const WorkerOptions& options) {
  if (options.model.empty())
    return Status(Code::kInvalidArgument,
                  "the model has no name; give one (model; on the command line --model-name)");
  auto overrides = options.settings;
  if (!options.controller.empty()) overrides["controller"] = options.controller;
  return Settings::From(overrides);
}

}  // namespace weightcast::worker
