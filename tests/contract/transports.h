#pragma once

#include <cstdlib>
#include <vector>

#include "contract/side.h"
#include "fake_ibverbs/fabric.h"
#include "transport/shm/factory.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/factory.h"
#include "transport/transport.h"
#include "transport/verbs/factory.h"
#include "transport/verbs/verbs_transport.h"

namespace weightcast::transport {

/// Shared memory where the system forbids cross-process copy: private memory goes through the ring.
inline Result<std::unique_ptr<Transport>> CreateShmRing(const TransportOptions& options) {
  return shm::ShmTransport::Create(options, /*cross_copy=*/false);
}

/// Queue pairs over two NICs that are a network inside this process: each transport is a host of it.
inline Result<std::unique_ptr<Transport>> CreateVerbsOnFake(const TransportOptions& options) {
  static fake::Fabric fabric({.background = true});
  fake::HostConfig host;
  host.devices.assign(2, {});
  for (int i = 0; i < 2; ++i) {
    fake::DeviceConfig& device = host.devices[static_cast<size_t>(i)];
    device.name = i == 0 ? "fake0" : "fake1";
    device.ports[0].rail = i;
    device.rounds_up = device.keeps_completions = true;
  }
  return verbs::VerbsTransport::Create(options, fabric.NewHost(host));
}

/// Every transport that the suite runs over.
struct TestedTransport {
  TransportFactory factory;
  bool crosses_processes = true;
  std::vector<TestPlace> places = {TestPlace::kShared, TestPlace::kPrivate};
};
inline std::vector<TestedTransport> TestedTransports() {
  std::vector<TestedTransport> tested = {
      {{"tcp", &CreateTcpTransport}},
      {{"tcp_gpu", &CreateTcpTransport}, /*crosses_processes=*/true, {TestPlace::kDevice}},
      {{"shm", &CreateShmTransport}},
      {{"shm_ring", &CreateShmRing}},
      {{"shm_pull", &CreateShmTransport}, /*crosses_processes=*/true, {TestPlace::kDevice}},
      {{"shm_gpu_ring", &CreateShmTransport}, /*crosses_processes=*/true, {TestPlace::kSecluded}},
      {{"verbs_fake", &CreateVerbsOnFake}, /*crosses_processes=*/false},
  };
  // Where there is a device: tests/rdma.
  if (std::getenv("WC_TEST_VERBS") != nullptr) tested.push_back({{"verbs", &CreateVerbsTransport}});
  return tested;
}

}  // namespace weightcast::transport
