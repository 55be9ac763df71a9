#pragma once

#include "weightcast/status.h"

namespace weightcast::tools {

/// From here on SIGINT, SIGTERM and SIGHUP ask the process to end gracefully. What has not ended
/// two seconds after such a signal, or at a second one, ends at once. SIGPIPE is ignored: writing to a
/// closed pipe is an error like any other. SIGINT and SIGHUP stay ignored where they were (nohup).
void InstallStopSignals();

/// The signal that asked the process to end; 0: none so far.
int StopSignal();

/// Readable from the first stop signal on; for poll.
int StopDescriptor();

/// kCancelled once the process has been asked to end.
Status CheckStop();

}  // namespace weightcast::tools
