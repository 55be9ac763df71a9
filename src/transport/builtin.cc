#include <array>

#include "transport/shm/factory.h"
#include "transport/tcp/factory.h"
#include "transport/transport.h"
#include "transport/verbs/factory.h"

namespace weightcast::transport {

// The only file that names transports. Best first: the endpoint takes the first that proves itself.
std::span<const TransportFactory> BuiltinTransports() {
  static constexpr std::array kFactories = {
      TransportFactory{"shm", &CreateShmTransport},
      TransportFactory{"verbs", &CreateVerbsTransport},
      TransportFactory{"tcp", &CreateTcpTransport},
  };
  return kFactories;
}

}  // namespace weightcast::transport
