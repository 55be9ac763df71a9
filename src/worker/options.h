#pragma once

#include <chrono>
#include <cstddef>

#include "weightcast/settings.h"
#include "weightcast/status.h"
#include "weightcast/worker.h"

namespace weightcast::worker {

/// For a worker that leaves, until the controller has heard it.
inline constexpr auto kLeaveTime = std::chrono::seconds(1);
/// What a worker starts before there is any peer.
inline constexpr size_t kLeastThreads = 16;

/// The settings of a worker of any kind, with the controller that its options name. kInvalidArgument: a
/// setting that is wrong, or no name of a model.
Result<Settings> SettingsOf(const WorkerOptions& options);

}  // namespace weightcast::worker
