#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "base/strings.h"
#include "doctor/gather.h"
#include "topology/device_file.h"
#include "topology/files.h"
#include "topology/sysfs.h"

namespace weightcast::doctor {
namespace {

namespace fs = std::filesystem;
using topology::NamesIn;
using topology::ReadLine;

constexpr std::string_view kEmptyGid = "0000:0000:0000:0000:0000:0000:0000:0000";

/// "ACTIVE" of "4: ACTIVE".
std::string AfterColon(const std::string& line) {
  const size_t colon = line.find(": ");
  return colon == std::string::npos ? line : line.substr(colon + 2);
}

int64_t ReadHexNumber(const fs::path& file) { return ParseHex<int64_t>(ReadLine(file)).value_or(kUnknown); }

std::vector<GidEntry> ReadGids(const fs::path& port) {
  std::vector<GidEntry> gids;
  for (const std::string& index : NamesIn(port / "gids")) {
    std::string gid = ReadLine(port / "gids" / index);
    if (gid.empty() || gid == kEmptyGid) continue;
    gids.push_back({.index = ParseNumber<int64_t>(index).value_or(kUnknown),
                    .gid = std::move(gid),
                    .type = ReadLine(port / "gid_attrs/types" / index)});
  }
  return gids;
}

/// Without its GIDs: they are hundreds of files.
RdmaPort ReadPort(const Sources& sources, const std::string& device, const std::string& number) {
  const fs::path folder = sources.root / "sys/class/infiniband" / device / "ports" / number;
  const int port = ParseNumber<int>(number).value_or(1);
  RdmaPort facts;
  facts.name = StrCat(device, ":", number);
  facts.device = device;
  facts.number = port;
  facts.state = AfterColon(ReadLine(folder / "state"));
  facts.physical_state = AfterColon(ReadLine(folder / "phys_state"));
  facts.link_layer = ReadLine(folder / "link_layer");
  facts.rate = ReadLine(folder / "rate");
  facts.lid = ReadHexNumber(folder / "lid");
  facts.sm_lid = ReadHexNumber(folder / "sm_lid");
  facts.interface = topology::Sysfs(sources.root / "sys").InterfaceOf(device, port, std::nullopt);
  facts.interface_mtu =
      ParseNumber<int64_t>(ReadLine(sources.root / "sys/class/net" / facts.interface / "mtu"))
          .value_or(kUnknown);
  return facts;
}

RdmaDevice ReadDevice(const Sources& sources, const std::string& name) {
  const fs::path folder = sources.root / "sys/class/infiniband" / name;
  RdmaDevice facts;
  facts.name = name;
  facts.firmware = ReadLine(folder / "fw_ver");
  facts.board = ReadLine(folder / "board_id");
  std::error_code error;
  facts.virtual_function = fs::exists(folder / "device/physfn", error);
  facts.virtual_functions = ParseNumber<int64_t>(ReadLine(folder / "device/sriov_numvfs")).value_or(0);
  const fs::path verbs = sources.root / "sys/class/infiniband_verbs";
  for (const std::string& one : NamesIn(verbs)) {
    if (ReadLine(verbs / one / "ibdev") == name) facts.verbs = one;
  }
  const fs::path file = sources.root / "dev/infiniband" / facts.verbs;
  facts.writable = !facts.verbs.empty() && access(file.c_str(), R_OK | W_OK) == 0;
  return facts;
}

/// Of all devices.
std::vector<RdmaPort> ReadPorts(const Sources& sources) {
  std::vector<RdmaPort> ports;
  for (const std::string& device : topology::Sysfs(sources.root / "sys").RdmaDevices()) {
    for (const std::string& number : NamesIn(sources.root / "sys/class/infiniband" / device / "ports"))
      ports.push_back(ReadPort(sources, device, number));
  }
  return ports;
}

int64_t BytesOf(ibv_mtu mtu) { return int64_t{128} << static_cast<int>(mtu); }

void AskDevice(drivers::Ibverbs& api, ibv_device* device, VerbsFacts& facts) {
  facts.listed.emplace_back(device->name);
  ibv_context* const context = api.OpenDevice(device);
  if (context == nullptr) {
    facts.not_opened[device->name] = topology::ReasonNotOpened(*device, errno);
    return;
  }
  ibv_device_attr attr{};
  const int error = api.QueryDevice(context, &attr);
  if (error != 0)
    facts.not_opened[device->name] =
        StrCat("cannot be queried: ", ErrnoText(error), "; check its driver with ibv_devinfo");
  for (int number = 1; error == 0 && number <= attr.phys_port_cnt; ++number) {
    ibv_port_attr port{};
    if (api.QueryPort(context, static_cast<uint8_t>(number), &port) != 0) continue;
    facts.ports.push_back({.name = StrCat(device->name, ":", number),
                           .active_mtu = BytesOf(port.active_mtu),
                           .max_mtu = BytesOf(port.max_mtu)});
  }
  api.CloseDevice(context);
}

/// What `dcb` prints behind "prio-pfc"; empty: no dcb, or the interface has no such thing.
std::string AskDcb(const std::string& interface) {
  const std::string plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@";
  if (interface.empty() || interface.find_first_not_of(plain) != std::string::npos) return {};
  const std::string command = StrCat("dcb pfc show dev ", interface, " prio-pfc 2>/dev/null");
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  char line[512] = {};
  if (pipe == nullptr || std::fgets(line, sizeof line, pipe.get()) == nullptr) return {};
  const std::string text(line);
  static constexpr std::string_view kHead = "prio-pfc ";
  const size_t at = text.find(kHead);
  return at == std::string::npos
             ? std::string()
             : text.substr(at + kHead.size(), text.find_last_not_of(" \n") + 1 - at - kHead.size());
}

/// "0:off 1:off …" of "0,0,0,1,0,0,0,0", as the vendor's driver has it.
std::string PrioritiesOf(const std::string& flags) {
  std::string text;
  int priority = 0;
  for (const char flag : flags) {
    if (flag != '0' && flag != '1') continue;
    text += StrCat(text.empty() ? "" : " ", priority++, flag == '1' ? ":on" : ":off");
  }
  return text;
}

/// Of DCQCN: it needs its notification point and its reaction point.
std::string EcnOf(const fs::path& folder) {
  std::string found;
  for (const std::string& priority : NamesIn(folder / "roce_np/enable")) {
    const bool notifies = ReadLine(folder / "roce_np/enable" / priority) == "1";
    const bool reacts = ReadLine(folder / "roce_rp/enable" / priority) == "1";
    found = notifies && reacts ? "1" : found.empty() ? "0" : found;
  }
  return found;
}

}  // namespace

RdmaFacts GatherRdma(const Sources& sources) {
  RdmaFacts facts;
  for (const std::string& device : topology::Sysfs(sources.root / "sys").RdmaDevices())
    facts.devices.push_back(ReadDevice(sources, device));
  facts.ports = ReadPorts(sources);
  for (RdmaPort& port : facts.ports)
    port.gids = ReadGids(sources.root / "sys/class/infiniband" / port.device / "ports" / StrCat(port.number));
  return facts;
}

VerbsFacts GatherVerbs(const Sources& sources) {
  VerbsFacts facts;
  const auto api = sources.verbs();
  if (!api.ok()) {
    facts.error = api.status().message();
    return facts;
  }
  int count = 0;
  ibv_device** const list = (*api)->GetDeviceList(&count);
  for (int i = 0; list != nullptr && i < count; ++i) AskDevice(**api, list[i], facts);
  if (list != nullptr) (*api)->FreeDeviceList(list);
  return facts;
}

QosFacts GatherQos(const Sources& sources) {
  QosFacts facts;
  for (const RdmaPort& port : ReadPorts(sources)) {
    if (port.link_layer != "Ethernet" || port.interface.empty()) continue;
    const fs::path net = sources.root / "sys/class/net" / port.interface;
    const fs::path forced =
        sources.root / "sys/class/infiniband" / port.device / "tc" / StrCat(port.number) / "traffic_class";
    QosPort one{.interface = port.interface,
                .traffic_class = ReadLine(forced),
                .trust = ReadLine(net / "qos/trust"),
                .pfc = PrioritiesOf(ReadLine(net / "qos/pfc")),
                .ecn = EcnOf(net / "ecn")};
    if (one.pfc.empty() && sources.run_dcb) one.pfc = AskDcb(port.interface);
    facts.ports.push_back(std::move(one));
  }
  return facts;
}

}  // namespace weightcast::doctor
