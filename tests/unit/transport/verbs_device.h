#pragma once

#include <memory>

#include "transport/verbs/rdma_device.h"
#include "unit/transport/verbs_world.h"

namespace weightcast::transport::verbs {

/// The first device of a host that is alone in its network, opened for one port.
struct OpenedDevice {
  explicit OpenedDevice(const fake::HostConfig& config = Nics(1), uint8_t port = 1)
      : host(fabric.NewHost(config)), device(host) {
    ibv_device** const list = host->GetDeviceList(nullptr);
    const Status opened = device.Open(list[0], port);
    host->FreeDeviceList(list);
    Require(opened.ok(), opened.message());
  }
  fake::Fabric fabric{{.virtual_time = true}};
  std::shared_ptr<Ibverbs> host;
  RdmaDevice device;
};

}  // namespace weightcast::transport::verbs
