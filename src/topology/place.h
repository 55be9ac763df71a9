#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weightcast::topology {

/// Where a device sits in the machine.
struct Place {
  /// From the host bridge to the device, as sysfs has it: "pci0000:16", "0000:16:01.0", "0000:17:00.0". What
  /// several devices make up, a bond, has the part that they share. Empty: no PCI device.
  std::vector<std::string> path;
  int node = -1;  ///< NUMA node; -1: the firmware does not say.

  /// "0000:17:00.0", or nothing.
  [[nodiscard]] std::string_view address() const;
};

/// Whether a part of a path is a host bridge, "pci0000:16".
bool IsHostBridge(std::string_view part);

/// How near two devices, or a device and the memory of a NUMA node, are. Nearest first.
enum class Nearness {
  kSwitch,      ///< Below one PCIe switch or root port: data does not pass through the processor.
  kHostBridge,  ///< Below one host bridge.
  kNode,        ///< On one NUMA node.
  kOtherNode,
  kUnknown,  ///< A place that is not known, on a machine of several nodes.
};
/// "same switch", "same host bridge", "same NUMA node", "other NUMA node", "unknown".
std::string_view ToString(Nearness nearness);

struct Distance {
  Nearness nearness = Nearness::kUnknown;
  int hops = 0;  ///< kSwitch: PCIe links between the two. Switches stand in rows, and a near one is better.
  auto operator<=>(const Distance&) const = default;
};

/// Of a and b; a path that is empty stands for the memory of its node. `nodes`: that the machine has.
Distance DistanceOf(const Place& a, const Place& b, size_t nodes);

}  // namespace weightcast::topology
