#pragma once

#include <array>
#include <span>

#include "transport/shm/factory.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/factory.h"
#include "transport/transport.h"

namespace weightcast::transport {

/// Shared memory where the system forbids cross-process copy: private memory goes through the ring.
inline Result<std::unique_ptr<Transport>> CreateShmRing(const TransportOptions& options) {
  return shm::ShmTransport::Create(options, /*cross_copy=*/false);
}

/// Every transport that the suite runs over.
inline std::span<const TransportFactory> TestedTransports() {
  static constexpr std::array kFactories = {
      TransportFactory{"tcp", &CreateTcpTransport},
      TransportFactory{"shm", &CreateShmTransport},
      TransportFactory{"shm_ring", &CreateShmRing},
  };
  return kFactories;
}

}  // namespace weightcast::transport
