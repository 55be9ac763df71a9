#include "verbs_cluster/process.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/strings.h"
#include "transport/verbs/verbs_transport.h"

namespace weightcast::transport::verbs {
namespace {
bool failed = false;
}  // namespace

void Require(bool condition, std::string_view what) {
  if (condition) return;
  std::fprintf(stderr, "verbs_cluster: %.*s\n", static_cast<int>(what.size()), what.data());
  std::exit(1);
}

void Expect(bool condition, std::string_view what) {
  if (condition) return;
  std::fprintf(stderr, "verbs_cluster: too much: %.*s\n", static_cast<int>(what.size()), what.data());
  failed = true;
}

bool AllHeld() { return !failed; }

size_t Descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(open), end(open))) - 1;  // Its own.
}

fake::HostConfig HostWith(int nics, bool small) {
  fake::HostConfig host{.devices = {}};
  for (int i = 0; i < nics; ++i) {
    fake::DeviceConfig device;
    device.name = StrCat("nic", i);
    device.ports[0].infiniband = true;
    device.max_qp = 1 << 16;
    if (small) {
      device.max_cqe = 256;
      device.max_srq_wr = 64;
    }
    host.devices.push_back(device);
  }
  return host;
}

Process::Process(fake::Fabric& fabric, const fake::HostConfig& config, uint32_t nth, uint64_t bytes)
    : verbs(std::make_shared<Metered>(fabric.NewHost(config))), memory(bytes) {
  self = nth + 1;
  transport = VerbsTransport::Create({.settings = {}, .self = self}, verbs).value();
}

void Process::Register(Access access) {
  DescribedMemory described;
  described.address = memory.data();
  described.length = memory.size();
  name = {.owner = self, .id = 1, .generation = 1};
  key = transport->Register(name, described, access).value();
}

void Process::Pump() {
  std::array<Event, 64> events;
  for (size_t count = events.size(); count == events.size();) {
    count = transport->Progress(events).events;
    for (size_t i = 0; i < count; ++i) Take(events[i]);
  }
}

void Process::Take(const Event& event) {
  if (const auto* up = std::get_if<LinkReady>(&event)) {
    ++ready;
    fewest = std::min(fewest, up->lanes);
    most = std::max(most, up->lanes);
  } else if (std::holds_alternative<SignalArrived>(event)) {
    ++signals;
  } else if (const auto* done = std::get_if<Completion>(&event)) {
    Require(done->code == Code::kOk, "a write has failed");
    ++completed;
  } else if (const auto* down = std::get_if<LinkDown>(&event)) {
    Require(false, down->reason.message());
  }
}

}  // namespace weightcast::transport::verbs
