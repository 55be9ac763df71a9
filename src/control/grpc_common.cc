#include "control/grpc_common.h"

#include <grpc/support/log.h>

#include "base/log.h"

namespace weightcast::control {

void TakeGrpcLog() {
  static const bool once = [] {
    gpr_set_log_function([](gpr_log_func_args* args) {
      if (args->severity == GPR_LOG_SEVERITY_ERROR) {
        WC_LOG_LIMITED(kWarning, "grpc: ", args->message);
      } else {
        WC_LOG(kDebug, "grpc: ", args->message);
      }
    });
    return true;
  }();
  (void)once;
}

}  // namespace weightcast::control
