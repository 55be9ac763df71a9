#pragma once

#include <memory>

#include "transport/transport.h"

namespace weightcast::transport {

Result<std::unique_ptr<Transport>> CreateShmTransport(const TransportOptions& options);

}  // namespace weightcast::transport
