#include <algorithm>

#include "base/strings.h"
#include "doctor/checks.h"

namespace weightcast::doctor {
namespace {

/// Of RoCE: the kernel takes the largest of 256 to 4096 that fits the interface's MTU less the headers (96
/// bytes, iboe_get_mtu in include/rdma/ib_addr.h).
int64_t RoceMtu(int64_t interface_mtu) {
  static constexpr int64_t kHeaders = 96;
  for (int64_t mtu = 4096; mtu > 256; mtu /= 2) {
    if (interface_mtu - kHeaders >= mtu) return mtu;
  }
  return 256;
}

std::string FolderOf(const RdmaPort& port) {
  return StrCat("/sys/class/infiniband/", port.device, "/ports/", port.number);
}

bool IsEthernet(const RdmaPort& port) { return port.link_layer == "Ethernet"; }

void CheckDevice(const Facts& facts, const RdmaDevice& device, Findings& findings) {
  const std::string file = StrCat("/dev/infiniband/", device.verbs);
  const bool container = !facts.host.container.empty();
  if (device.verbs.empty()) {
    findings.Fail(
        {.check = "device",
         .subject = device.name,
         .text = StrCat("The kernel offers ", device.name, " to no process: ib_uverbs does not serve it."),
         .evidence = "/sys/class/infiniband_verbs",
         .remedy = "modprobe ib_uverbs"});
  } else if (!device.writable) {
    findings.Fail(
        {.check = "device",
         .subject = device.name,
         .text = StrCat("This process may not open ", file, "."),
         .evidence = StrCat("access(", file, ", R_OK | W_OK)"),
         .remedy = container
                       ? "docker run --device /dev/infiniband …  # Kubernetes: an RDMA device plugin"
                       : StrCat("chmod 666 ", file, "  # for good: a udev rule, or the group of the file")});
  } else if (const auto why = facts.verbs.not_opened.find(device.name); why != facts.verbs.not_opened.end()) {
    findings.Fail({.check = "device",
                   .subject = device.name,
                   .text = StrCat(device.name, " ", why->second, "."),
                   .evidence = "ibv_open_device",
                   .remedy = StrCat("ibv_devinfo -d ", device.name, "; dmesg | tail -n 50")});
  } else if (facts.verbs.error.empty() && !facts.missed.contains("verbs") &&
             std::ranges::find(facts.verbs.listed, device.name) == facts.verbs.listed.end()) {
    findings.Fail({.check = "device",
                   .subject = device.name,
                   .text = StrCat("libibverbs does not list ", device.name, ": it has no provider for it."),
                   .evidence = "ibv_get_device_list",
                   .remedy = "apt-get install ibverbs-providers  # elsewhere: rdma-core"});
  } else {
    const std::string made = device.virtual_functions == 0
                                 ? ""
                                 : StrCat(", with ", device.virtual_functions, " virtual functions");
    findings.Ok({.check = "device",
                 .subject = device.name,
                 .text = StrCat(device.virtual_function ? "A virtual function" : "A device", made,
                                ", firmware ", device.firmware.empty() ? "unknown" : device.firmware, "."),
                 .evidence = file});
  }
}

void CheckDevices(const Facts& facts, Findings& findings) {
  if (!facts.verbs.error.empty())
    findings.Fail({.check = "library",
                   .text = "RDMA devices are here, and libibverbs cannot be loaded.",
                   .evidence = facts.verbs.error,
                   .remedy = "apt-get install libibverbs1 ibverbs-providers  # elsewhere: rdma-core"});
  for (const RdmaDevice& device : facts.rdma.devices) {
    CheckDevice(facts, device, findings);
    for (const RdmaDevice& other : facts.rdma.devices) {
      if (&other >= &device || device.board.empty() || other.board != device.board ||
          other.firmware == device.firmware)
        continue;
      findings.Warn({.check = "firmware",
                     .subject = device.name,
                     .text = StrCat(device.name, " has firmware ", device.firmware, ", and ", other.name,
                                    " of the same kind has ", other.firmware, "."),
                     .evidence = StrCat("fw_ver of board ", device.board),
                     .remedy = "mlxfwmanager --online -u  # or the vendor's tool"});
      break;
    }
  }
}

/// A setting that asks for RDMA tells that a device should be here: the module that makes it is missing. A
/// device that a setting names is for CheckHost.
void CheckNoDevice(const Facts& facts, Findings& findings) {
  const std::string transport = Setting(facts, "transport");
  if (transport.empty() || !MayUse(facts, "verbs"))
    return findings.NotApplicable({.check = "device",
                                   .text = "No RDMA device. Transfers use shared memory and TCP.",
                                   .evidence = "/sys/class/infiniband"});
  findings.Fail({.check = "device",
                 .text = StrCat("No RDMA device, and setting transport asks for one: ", transport,
                                ". The module that makes it is not loaded, or there is no NIC."),
                 .evidence = StrCat("/sys/class/infiniband; modules loaded: ",
                                    facts.modules.loaded.empty() ? "none" : Join(facts.modules.loaded, ", ")),
                 .remedy = "modprobe mlx5_ib  # or the RDMA module of this NIC (lspci -k), or rdma_rxe"});
}

/// Whether data can flow at all. False: nothing else need be asked of this port.
bool CheckState(const Facts& facts, const RdmaPort& port, Findings& findings) {
  const std::string evidence = StrCat(FolderOf(port), ": state ", port.state, ", phys_state ",
                                      port.physical_state, ", lid ", port.lid, ", sm_lid ", port.sm_lid);
  if (!IsEthernet(port) && port.physical_state == "LinkUp" && (port.sm_lid <= 0 || port.state == "INIT")) {
    findings.Fail(
        {.check = "subnet_manager",
         .subject = port.name,
         .text = StrCat("No subnet manager has set this port up: its state is ", port.state, "."),
         .evidence = evidence,
         .remedy = "systemctl start opensm  # on one host of the fabric, or on its switch; then: sminfo"});
    return false;
  }
  if (port.state == "ACTIVE") {
    findings.Ok({.check = "state",
                 .subject = port.name,
                 .text = StrCat("Active, ", port.link_layer, ", ", port.rate, "."),
                 .evidence = evidence});
    return true;
  }
  const bool other =
      std::ranges::any_of(facts.rdma.ports, [](const RdmaPort& one) { return one.state == "ACTIVE"; });
  const std::string why = port.physical_state == "Disabled"
                              ? "it is switched off"
                              : "there is no signal: cable, transceiver or switch port";
  findings.Add(
      other ? Level::kWarn : Level::kFail,
      {.check = "state",
       .subject = port.name,
       .text = StrCat("The port is not active but ", port.state, " (", port.physical_state, "); ", why, "."),
       .evidence = evidence,
       .remedy = port.interface.empty()
                     ? StrCat("ibstat ", port.device, "  # left out: export WEIGHTCAST_NICS=^", port.name)
                     : StrCat("ip link set ", port.interface, " up; ethtool ", port.interface,
                              "  # left out: export WEIGHTCAST_NICS=^", port.name)});
  return false;
}

void CheckGid(const Facts& facts, const RdmaPort& port, Findings& findings) {
  if (!IsEthernet(port)) return;
  const GidEntry* const best = BestGid(port);
  const std::string interface = port.interface.empty() ? "ITS_INTERFACE" : port.interface;
  const std::string evidence = StrCat(FolderOf(port), "/gids: ", port.gids.size(), " entries");
  if (best == nullptr)
    return findings.Fail(
        {.check = "gid",
         .subject = port.name,
         .text = "The port has no RoCE v2 GID, so no packet can be routed. Its interface has no IP address, "
                 "or the driver makes RoCE v1 only.",
         .evidence = StrCat(evidence, ", none of type RoCE v2"),
         .remedy = StrCat("ip link set ", interface, " up; ip address add ADDRESS/PREFIX dev ", interface)});
  Finding finding{.check = "gid",
                  .subject = port.name,
                  .text = StrCat("RoCE v2 at index ", best->index, "."),
                  .evidence = StrCat(FolderOf(port), "/gids/", best->index, ": ", best->gid)};
  if (KindOf(*best) == GidKind::kLinkLocal) {
    finding.text =
        StrCat("The only RoCE v2 GID, index ", best->index, ", is link-local: no router forwards it.");
    finding.remedy = StrCat("ip address add ADDRESS/PREFIX dev ", interface);
    findings.Warn(finding);
  } else {
    findings.Ok(finding);
  }
  for (const auto& [name, value] : {std::pair("WEIGHTCAST_GID_INDEX", Setting(facts, "gid_index")),
                                    std::pair("NCCL_IB_GID_INDEX", Variable(facts, "NCCL_IB_GID_INDEX"))}) {
    const auto index = ParseNumber<int64_t>(value);
    if (!index || *index < 0) continue;  // NCCL: -1 is its own choice.
    const auto entry = std::ranges::find(port.gids, *index, &GidEntry::index);
    if (entry != port.gids.end() && KindOf(*entry) != GidKind::kRoceV1) continue;
    findings.Fail({.check = "gid_index",
                   .subject = port.name,
                   .text = StrCat(name, " is ", value, ", and that entry is ",
                                  entry == port.gids.end() ? "empty" : "not RoCE v2", "."),
                   .evidence = StrCat(FolderOf(port), "/gid_attrs/types/", value, ": ",
                                      entry == port.gids.end() ? "none" : entry->type),
                   .remedy = StrCat("export ", name, "=", best->index)});
  }
}

void CheckMtu(const Facts& facts, const RdmaPort& port, Findings& findings) {
  const auto asked = std::ranges::find(facts.verbs.ports, port.name, &VerbsPort::name);
  int64_t active = kUnknown;
  int64_t most = 4096;
  std::string evidence = "ibv_query_port";
  if (asked != facts.verbs.ports.end()) {
    active = asked->active_mtu;
    most = asked->max_mtu;
  } else if (IsEthernet(port) && port.interface_mtu > 0) {
    active = RoceMtu(port.interface_mtu);
    evidence = "MTU of the interface less 96 bytes of headers";
  }
  if (port.interface_mtu > 0) evidence += StrCat("; ", port.interface, " has MTU ", port.interface_mtu);
  if (active == kUnknown)
    return findings.NotApplicable({.check = "mtu",
                                   .subject = port.name,
                                   .text = "The active MTU is not known: only the driver tells it.",
                                   .evidence = "the device was not opened"});
  Finding finding{.check = "mtu",
                  .subject = port.name,
                  .text = StrCat("MTU ", active, " of ", most, " possible."),
                  .evidence = evidence};
  if (active >= most) return findings.Ok(finding);
  finding.text =
      StrCat("MTU ", active, " is active, and ", most, " is possible. Small packets cost bandwidth.");
  finding.remedy = IsEthernet(port)
                       ? StrCat("ip link set ", port.interface.empty() ? "ITS_INTERFACE" : port.interface,
                                " mtu 9000  # on every host and switch port of this network")
                       : "echo 'Default=0x7fff,ipoib,mtu=5:ALL=full;' > /etc/opensm/partitions.conf  # then "
                         "restart opensm";
  findings.Warn(finding);
}

double GbitOf(const RdmaPort& port) {
  return ParseNumber<double>(port.rate.substr(0, port.rate.find(' '))).value_or(0);
}

std::string BoardOf(const Facts& facts, const RdmaPort& port) {
  const auto device = std::ranges::find(facts.rdma.devices, port.device, &RdmaDevice::name);
  return device == facts.rdma.devices.end() ? std::string() : device->board;
}

void CheckRate(const Facts& facts, const RdmaPort& port, Findings& findings) {
  const std::string remedy =
      StrCat("mlxlink -d ", port.device, "  # width, speed and errors of cable and switch port");
  if (!IsEthernet(port) && port.rate.find("(1X") != std::string::npos)
    return findings.Warn({.check = "width",
                          .subject = port.name,
                          .text = StrCat("The link runs on one lane of its cable: ", port.rate, "."),
                          .evidence = StrCat(FolderOf(port), "/rate: ", port.rate),
                          .remedy = remedy});
  for (const RdmaPort& other : facts.rdma.ports) {
    if (other.state != "ACTIVE" || BoardOf(facts, port).empty() ||
        BoardOf(facts, other) != BoardOf(facts, port) || GbitOf(other) <= GbitOf(port))
      continue;
    return findings.Warn({.check = "rate",
                          .subject = port.name,
                          .text = StrCat("The link runs at ", port.rate, ", and that of ", other.name,
                                         ", the same product, at ", other.rate, "."),
                          .evidence = StrCat(FolderOf(port), "/rate"),
                          .remedy = remedy});
  }
}

}  // namespace

void CheckRdma(const Facts& facts, Findings& findings) {
  if (facts.rdma.devices.empty()) return CheckNoDevice(facts, findings);
  if (!MayUse(facts, "verbs"))
    return findings.NotApplicable({.check = "device",
                                   .text = "The setting transport leaves RDMA out.",
                                   .evidence = StrCat("transport=", Setting(facts, "transport"))});
  CheckDevices(facts, findings);
  for (const RdmaPort& port : facts.rdma.ports) {
    if (!IsWanted(facts, port)) {
      findings.NotApplicable({.check = "state",
                              .subject = port.name,
                              .text = "Left out by setting nics.",
                              .evidence = StrCat("nics=", Setting(facts, "nics"))});
      continue;
    }
    if (!CheckState(facts, port, findings)) continue;
    CheckGid(facts, port, findings);
    CheckMtu(facts, port, findings);
    CheckRate(facts, port, findings);
  }
}

}  // namespace weightcast::doctor
