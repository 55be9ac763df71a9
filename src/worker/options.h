#pragma once

#include "weightcast/settings.h"
#include "weightcast/status.h"
#include "weightcast/worker.h"

namespace weightcast::worker {

/// The settings of a worker of any kind, with the controller that its options name. kInvalidArgument: a
/// setting that is wrong, or no name of a model.
Result<Settings> SettingsOf(const WorkerOptions& options);

}  // namespace weightcast::worker
