#include "tools/worker/worker_loop.h"

#include "tools/common/stop.h"

namespace weightcast::tools {

WorkerOptions BasicOptions(const Context& context) {
  WorkerOptions options;
  options.settings = context.overrides;
  options.interrupted = [] { return StopSignal() != 0; };
  return options;
}

Result<Version> ReceiveVersion(Inference& inference, Duration finish) {
  WC_ASSIGN_OR_RETURN(const Version version, inference.Receive(kNever));
  WC_RETURN_IF_ERROR(inference.Finish(In(finish)));
  return version;
}

}  // namespace weightcast::tools
