#include "base/log.h"
#include "weightcast/worker.h"

namespace weightcast {

Status SetLogLevelByName(const std::string& level) {
  const auto known = LogLevelFromName(level);
  if (!known)
    return Error(Code::kInvalidArgument, "log level is '", level,
                 "'; allowed: debug, info, warning, error, off");
  SetLogLevel(*known);
  return Status::Ok();
}

}  // namespace weightcast
