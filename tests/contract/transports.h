#pragma once

#include <cstdlib>
#include <vector>

#include "contract/side.h"
#include "fake_cuda/fake_cuda.h"
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
  return shm::ShmTransport::Create(options, shm::CrossCopies::kOff);
}
/// Shared memory where the target copies what is written to its private memory.
inline Result<std::unique_ptr<Transport>> CreateShmPulled(const TransportOptions& options) {
  return shm::ShmTransport::Create(options, shm::CrossCopies::kByTarget);
}

/// A host with two NICs, which take device memory as dma-bufs or, without `dmabuf`, by its address.
inline fake::HostConfig FakeNics(bool dmabuf) {
  fake::HostConfig host;
  host.devices.assign(2, {});
  for (int i = 0; i < 2; ++i) {
    fake::DeviceConfig& device = host.devices[static_cast<size_t>(i)];
    device.name = i == 0 ? "fake0" : "fake1";
    device.ports[0].rail = i;
    device.rounds_up = device.keeps_completions = true;
    device.dmabuf = dmabuf;
    if (!dmabuf) device.peermem = &fake_cuda_peermem;
  }
  return host;
}

/// Queue pairs over NICs that are a network inside this process: each transport is a host of it.
inline fake::Fabric& FakeFabric() {
  static fake::Fabric fabric({.background = true});
  return fabric;
}
inline Result<std::unique_ptr<Transport>> CreateVerbsOnFake(const TransportOptions& options) {
  return verbs::VerbsTransport::Create(options, FakeFabric().NewHost(FakeNics(/*dmabuf=*/true)));
}
inline Result<std::unique_ptr<Transport>> CreateVerbsOnPeermem(const TransportOptions& options) {
  return verbs::VerbsTransport::Create(options, FakeFabric().NewHost(FakeNics(/*dmabuf=*/false)));
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
      {{"shm_pulled", &CreateShmPulled}, /*crosses_processes=*/true, {TestPlace::kPrivate}},
      {{"shm_pull", &CreateShmTransport}, /*crosses_processes=*/true, {TestPlace::kDevice}},
      {{"shm_gpu_ring", &CreateShmTransport}, /*crosses_processes=*/true, {TestPlace::kSecluded}},
      {{"verbs_fake", &CreateVerbsOnFake},
       /*crosses_processes=*/false,
       {TestPlace::kShared, TestPlace::kPrivate, TestPlace::kDevice}},
      {{"verbs_fake_peermem", &CreateVerbsOnPeermem}, /*crosses_processes=*/false, {TestPlace::kDevice}},
  };
  // Where there is a device: tests/rdma.
  if (std::getenv("WC_TEST_VERBS") != nullptr) tested.push_back({{"verbs", &CreateVerbsTransport}});
  return tested;
}

}  // namespace weightcast::transport
