// Apart, so that a program that brings its own transports links none of the built-in ones.

#include "endpoint/create.h"

namespace weightcast {

Result<std::unique_ptr<Endpoint>> Endpoint::Create(EndpointOptions options) {
  return endpoint::CreateWith(std::move(options), transport::BuiltinTransports());
}

}  // namespace weightcast
