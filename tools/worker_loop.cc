#include "tools/worker_loop.h"

#include <limits>

#include "tools/stop.h"

namespace weightcast::tools {

WorkerOptions BasicOptions(const Context& context) {
  WorkerOptions options;
  options.settings = context.overrides;
  options.interrupted = [] { return StopSignal() != 0; };
  return options;
}

Result<Version> ReceiveVersion(Inference& inference, double finish_seconds) {
  WC_ASSIGN_OR_RETURN(const Version version, inference.Receive(std::numeric_limits<double>::infinity()));
  WC_RETURN_IF_ERROR(inference.Finish(finish_seconds));
  return version;
}

}  // namespace weightcast::tools
