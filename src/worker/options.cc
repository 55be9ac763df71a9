#include "worker/options.h"

namespace weightcast::worker {

Result<Settings> SettingsOf(const WorkerOptions& options) {
  if (options.model.empty()) return Status(Code::kInvalidArgument, "the model needs a name; set model");
  auto overrides = options.settings;
  if (!options.controller.empty()) overrides["controller"] = options.controller;
  return Settings::From(overrides);
}

}  // namespace weightcast::worker
