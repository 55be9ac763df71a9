#include "topology/place.h"

#include <algorithm>
#include <array>

namespace weightcast::topology {
namespace {

/// On a machine of one node everything is on it, whatever the firmware says.
Nearness ByNode(int a, int b, size_t nodes) {
  if (nodes <= 1) return Nearness::kNode;
  if (a < 0 || b < 0) return Nearness::kUnknown;
  return a == b ? Nearness::kNode : Nearness::kOtherNode;
}

}  // namespace

bool IsHostBridge(std::string_view part) {
  return part.starts_with("pci") && part.size() > 3 && part.find(':') != std::string_view::npos;
}

std::string_view Place::address() const {
  return path.empty() || IsHostBridge(path.back()) ? std::string_view() : std::string_view(path.back());
}

std::string_view ToString(Nearness nearness) {
  static constexpr std::array<std::string_view, 5> kNames = {"same switch", "same host bridge",
                                                             "same NUMA node", "other NUMA node", "unknown"};
  static_assert(kNames.size() == static_cast<size_t>(Nearness::kUnknown) + 1);
  return kNames[static_cast<size_t>(nearness)];
}

Distance DistanceOf(const Place& a, const Place& b, size_t nodes) {
  const auto [end_a, end_b] = std::ranges::mismatch(a.path, b.path);
  const auto shared = end_a - a.path.begin();
  if (shared == 0) return {ByNode(a.node, b.node, nodes)};
  if (IsHostBridge(a.path[static_cast<size_t>(shared) - 1])) return {Nearness::kHostBridge};
  return {Nearness::kSwitch, static_cast<int>((a.path.end() - end_a) + (b.path.end() - end_b))};
}

}  // namespace weightcast::topology
