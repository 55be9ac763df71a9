#pragma once

#include <functional>

#include "weightcast/worker.h"

namespace weightcast::tools {

/// Calls `wait` with slices of a timeout until it answers otherwise than kTimedOut, `seconds` have
/// passed (0: no limit; then kTimedOut) or the process is asked to end (kCancelled). Anything that takes
/// long is waited for like this, so that Ctrl-C is heard.
Status WaitInSlices(double seconds, const std::function<Status(double slice)>& wait);

/// The phases of one update at an inference rank: waits, without limit, until every byte of a version is
/// there, and switches to it. Begin() has been called; must be called again afterwards.
Result<Version> ReceiveVersion(Inference& inference, double finish_seconds);

}  // namespace weightcast::tools
