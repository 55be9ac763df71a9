#pragma once

#include "endpoint/progress.h"
#include "endpoint/sockets.h"
#include "endpoint/timers.h"
#include "weightcast/endpoint.h"

namespace weightcast::endpoint {

/// What the parts of one endpoint share.
struct Context {
  const EndpointOptions& options;  ///< Without the token.
  Progress& progress;
  Sockets& sockets;
  Timers& timers;
};

}  // namespace weightcast::endpoint
