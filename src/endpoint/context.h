#pragma once

#include "endpoint/transfers/progress.h"
#include "endpoint/transfers/sockets.h"
#include "endpoint/transfers/timers.h"
#include "endpoint/transfers/user_callbacks.h"
#include "weightcast/endpoint.h"

namespace weightcast::endpoint {

/// What the parts of one endpoint share.
struct Context {
  const EndpointOptions& options;  ///< Without the token.
  Progress& progress;
  UserCallbacks& callbacks;
  Sockets& sockets;
  Timers& timers;
};

}  // namespace weightcast::endpoint
