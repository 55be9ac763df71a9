#pragma once

#include <memory>

#include "transport/transport.h"

namespace weightcast::transport {

/// kUnavailable where this machine has no RDMA device that may be used; the message says why.
Result<std::unique_ptr<Transport>> CreateVerbsTransport(const TransportOptions& options);

}  // namespace weightcast::transport
