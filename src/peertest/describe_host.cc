#include "peertest/describe_host.h"

#include <algorithm>
#include <filesystem>

#include "base/process.h"
#include "base/random.h"
#include "base/strings.h"
#include "base/wall_clock.h"
#include "doctor/checks.h"
#include "doctor/gather.h"
#include "endpoint/message.h"
#include "weightcast/version.h"

namespace weightcast::peertest {
namespace {

/// Without the zone of a link-local address.
std::string Plain(std::string address) { return address.substr(0, address.find('%')); }

std::string RemedyFor(const doctor::RdmaPort& port) {
  if (port.interface.empty()) return StrCat("ibstat ", port.device);
  return port.state == "ACTIVE" ? StrCat("ip address add ADDRESS/PREFIX dev ", port.interface)
                                : StrCat("ip link set ", port.interface, " up");
}

void DescribeRdma(const doctor::Sources& sources, const Settings& settings, HostReport& report) {
  doctor::Facts facts;
  facts.settings["nics"] = settings.nics;
  facts.rdma = doctor::GatherRdma(sources);
  if (facts.rdma.ports.empty()) {
    report.rdma = kNoRdmaDevice;
    return;
  }
  report.rdma = "no RDMA port that setting nics leaves in";
  for (const doctor::RdmaPort& port : facts.rdma.ports) {
    if (!doctor::IsWanted(facts, port)) continue;
    if (doctor::IsUsable(port)) {
      report.rdma.clear();
      report.rdma_remedy.clear();
      return;
    }
    if (!report.rdma_remedy.empty()) continue;
    report.rdma = StrCat("no RDMA port that is active: ", port.name, " is ",
                         port.state == "ACTIVE" ? "without a RoCE v2 GID"
                                                : StrCat(port.state, " (", port.physical_state, ")"));
    report.rdma_remedy = RemedyFor(port);
  }
}

const std::string& Instance() {
  static const std::string instance = StrCat(RandomId());
  return instance;
}

}  // namespace

HostReport DescribeHost(const std::string& address, const Settings& settings) {
  const doctor::Sources sources = doctor::LocalSources({});
  HostReport report{.weightcast = LibraryVersion(),
                    .wire = endpoint::kProtocolVersion,
                    .host = sources.host_name,
                    .boot_id = BootId(),
                    .instance = Instance(),
                    .address = address};
  for (const doctor::Interface& one : doctor::GatherHost(sources).interfaces) {
    const bool own = std::ranges::any_of(
        one.addresses, [&](const std::string& other) { return Plain(other) == Plain(address); });
    if (!own) continue;
    report.interface = one.name;
    report.mtu = one.mtu;
    // A virtual one names a speed that says nothing of the machine below.
    const auto device = std::filesystem::path("/sys/class/net") / one.name / "device";
    std::error_code ignored;
    if (one.mbit_per_second > 0 && std::filesystem::exists(device, ignored))
      report.mbit = one.mbit_per_second;
    break;
  }
  DescribeRdma(sources, settings, report);
  report.unix_seconds = UnixNow();
  return report;
}

}  // namespace weightcast::peertest
