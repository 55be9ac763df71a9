#pragma once

#include <memory>
#include <span>

#include "transport/transport.h"
#include "weightcast/endpoint.h"

namespace weightcast::endpoint {

/// Endpoint::Create with other transports than the built-in ones: for tests.
Result<std::unique_ptr<Endpoint>> CreateWith(EndpointOptions options,
                                             std::span<const transport::TransportFactory> factories);

}  // namespace weightcast::endpoint
