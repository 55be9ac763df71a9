#include "peertest/port_counts.h"

#include <algorithm>

#include "counters/reader.h"

namespace weightcast::peertest {
namespace {

using counters::Quantity;

int64_t ValueOf(const counters::Device& device, Quantity quantity) {
  const auto& count = device.counts[quantity];
  return count ? static_cast<int64_t>(count->value) : 0;
}

}  // namespace

std::vector<PortCount> ReadPortCounts() {
  std::vector<PortCount> ports;
  for (const counters::Device& device : counters::Reader(counters::Sources{}).Read().devices) {
    if (device.kind != counters::DeviceKind::kRdma || !device.counts[Quantity::kSentPackets]) continue;
    ports.push_back({.name = device.name,
                     .packets = ValueOf(device, Quantity::kSentPackets),
                     .repeats = ValueOf(device, Quantity::kRetransmissions)});
  }
  return ports;
}

std::vector<PortCount> CountedBetween(const std::vector<PortCount>& before,
                                      const std::vector<PortCount>& after) {
  std::vector<PortCount> counted;
  for (const PortCount& now : after) {
    const auto then = std::ranges::find(before, now.name, &PortCount::name);
    // One that is less has begun again.
    if (then == before.end() || now.packets <= then->packets || now.repeats < then->repeats) continue;
    counted.push_back(
        {.name = now.name, .packets = now.packets - then->packets, .repeats = now.repeats - then->repeats});
  }
  return counted;
}

}  // namespace weightcast::peertest
