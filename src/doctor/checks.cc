#include "doctor/checks.h"

#include <algorithm>
#include <array>

#include "base/strings.h"
#include "base/traffic_class.h"
#include "doctor/report.h"
#include "topology/nic_wish.h"

namespace weightcast::doctor {

std::string Setting(const Facts& facts, const std::string& name) {
  const auto found = facts.settings.find(name);
  return found == facts.settings.end() ? std::string() : found->second;
}

std::optional<uint8_t> TrafficClass(const Facts& facts) {
  const auto parsed = ParseTrafficClass(Setting(facts, "traffic_class"));
  return parsed.ok() ? *parsed : std::nullopt;
}

std::string Variable(const Facts& facts, const std::string& name) {
  const auto found = facts.environment.find(name);
  return found == facts.environment.end() ? std::string() : found->second;
}

bool MayUse(const Facts& facts, std::string_view name) {
  const std::string chosen = Setting(facts, "transport");
  return chosen.empty() || StrCat(",", chosen, ",").find(StrCat(",", name, ",")) != std::string::npos;
}

bool IsWanted(const Facts& facts, const RdmaPort& port) {
  return MayUse(facts, "verbs") &&
         topology::NicWish(Setting(facts, "nics")).Allows(port.device, static_cast<int>(port.number));
}

bool IsLoopback(std::string_view address) { return address.starts_with("127.") || address == "::1"; }

std::string MainInterface(const Facts& facts) {
  if (!facts.route.interface.empty() && !IsLoopback(facts.route.source)) return facts.route.interface;
  if (!facts.host.default_interface.empty()) return facts.host.default_interface;
  for (const Interface& one : facts.host.interfaces) {
    const bool reachable = std::ranges::any_of(one.addresses, [](const std::string& address) {
      return !IsLoopback(address) && !address.starts_with("fe80");
    });
    if (one.state != "down" && reachable) return one.name;
  }
  return {};
}

bool HasCapability(const Facts& facts, int number) {
  const auto bits = ParseHex<uint64_t>(facts.limits.capabilities);
  return bits && (*bits >> number & 1) != 0;
}

GidKind KindOf(const GidEntry& entry) {
  if (entry.type != "RoCE v2") return GidKind::kRoceV1;
  if (entry.gid.starts_with("0000:0000:0000:0000:0000:ffff:")) return GidKind::kIpv4;
  return entry.gid.starts_with("fe8") ? GidKind::kLinkLocal : GidKind::kIpv6;
}

const GidEntry* BestGid(const RdmaPort& port) {
  const GidEntry* best = nullptr;
  for (const GidEntry& entry : port.gids) {
    if (KindOf(entry) == GidKind::kRoceV1) continue;
    if (best == nullptr || KindOf(entry) > KindOf(*best)) best = &entry;
  }
  return best;
}

bool IsUsable(const RdmaPort& port) {
  return port.state == "ACTIVE" && (port.link_layer != "Ethernet" || BestGid(port) != nullptr);
}

namespace {

/// Where the findings of a probe would stand.
std::string GroupOf(std::string_view probe) {
  if (probe == "names" || probe == "route" || probe == "clock") return "host";
  if (probe == "verbs") return "rdma";
  return probe == "cuda" ? "gpu" : std::string(probe);
}

}  // namespace

std::vector<Finding> CheckAll(const Facts& facts) {
  struct Group {
    const char* name;
    const char* probe;  ///< Without it there is nothing to check.
    void (*check)(const Facts&, Findings&);
  };
  static constexpr std::array kGroups = {
      Group{"host", "", CheckHost},       Group{"limits", "limits", CheckLimits},
      Group{"modules", "", CheckModules}, Group{"rdma", "rdma", CheckRdma},
      Group{"qos", "", CheckQos},         Group{"pcie", "pcie", CheckPcie},
      Group{"numa", "pcie", CheckNuma},   Group{"cpu", "cpu", CheckCpu},
      Group{"gpu", "", CheckGpu}};
  Findings findings("");
  for (const Group& group : kGroups) {
    if (facts.missed.contains(group.probe)) continue;
    findings.Begin(group.name);
    group.check(facts, findings);
  }
  std::vector<Finding> all = findings.Take();
  for (const auto& [probe, reason] : facts.missed) {
    const bool resolver = probe == "names" || probe == "route";
    all.push_back(
        {.level = Level::kWarn,
         .group = GroupOf(probe),
         .check = "probe",
         .subject = probe,
         .text = StrCat("The probe ", probe, " ", reason, ". Nothing is known of this part."),
         .evidence = resolver ? "the resolver" : "the kernel or a driver",
         .remedy = resolver ? "cat /etc/resolv.conf; getent hosts $(hostname)" : "dmesg | tail -n 50"});
  }
  SortFindings(all);
  return all;
}

}  // namespace weightcast::doctor
