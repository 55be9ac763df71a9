#include "system/device_verbs/nics.h"

#include <array>

#include "transport/tcp/factory.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_transport.h"

namespace weightcast {

fake::HostConfig TwoNics(bool dmabuf) {
  fake::HostConfig host{.devices = {}};
  for (int rail = 0; rail < 2; ++rail) {
    fake::DeviceConfig nic;
    nic.name = rail == 0 ? "nic0" : "nic1";
    nic.ports[0].rail = rail;
    nic.dmabuf = dmabuf;
    host.devices.push_back(nic);
  }
  return host;
}

fake::HostConfig& NicsOfTheNext() {
  static fake::HostConfig next = TwoNics(true);
  return next;
}

namespace transport {
namespace {

Result<std::unique_ptr<Transport>> CreateOnFabric(const TransportOptions& options) {
  static fake::Fabric fabric({.background = true});
  return verbs::VerbsTransport::Create(options, fabric.NewHost(NicsOfTheNext()));
}

}  // namespace

/// In place of the one in src/transport/builtin.cc, which the linker then does not take: this program's
/// trainers and engines find the fake NICs, and no shared memory.
std::span<const TransportFactory> BuiltinTransports() {
  static constexpr std::array kFactories = {
      TransportFactory{"verbs", &CreateOnFabric},
      TransportFactory{"tcp", &CreateTcpTransport},
  };
  return kFactories;
}

}  // namespace transport
}  // namespace weightcast
