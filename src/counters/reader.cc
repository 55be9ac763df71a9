#include "counters/reader.h"

#include <fcntl.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/fd.h"
#include "base/strings.h"
#include "topology/files.h"

namespace weightcast::counters {
namespace {

namespace fs = std::filesystem;
using topology::NamesIn;
using topology::ReadLine;

/// The data counters of an InfiniBand port count 32-bit words (PortCounters, InfiniBand
/// specification 16.1.3.5).
constexpr uint64_t kWord = 4;
constexpr uint64_t kSaturated = 0xffffffff;

/// The number behind `name` in one protocol's two lines of /proc/net/snmp.
std::optional<Count> Column(const std::string& names, const std::string& values, std::string_view name) {
  std::istringstream heads(names);
  std::istringstream numbers(values);
  std::string head;
  std::string number;
  while (heads >> head && numbers >> number) {
    if (head != name) continue;
    if (const auto value = ParseNumber<uint64_t>(number)) return Count{.value = *value};
  }
  return std::nullopt;
}

void Add(std::optional<Count>& sum, const std::optional<Count>& more) {
  if (more) sum = Count{.value = (sum ? sum->value : 0) + more->value};
}

/// Pause frames of one direction, "rx" or "tx". mlx5 has a total of the port; others have one for each
/// priority, one for the whole link, or both.
std::optional<Count> Pauses(const std::map<std::string, uint64_t>& all, const std::string& direction) {
  if (const auto total = all.find(direction + "_pause_ctrl_phy"); total != all.end())
    return Count{.value = total->second};
  std::optional<Count> sum;
  const auto add = [&](const std::string& name) {
    if (const auto found = all.find(name); found != all.end()) Add(sum, Count{.value = found->second});
  };
  add(direction + "_pause");
  for (char priority = '0'; priority <= '7'; ++priority) add(StrCat(direction, "_prio", priority, "_pause"));
  return sum;
}

}  // namespace

std::string_view NameOf(DeviceKind kind) {
  static constexpr std::array<std::string_view, 4> kKinds = {"interface", "rdma", "tcp", "nvlink"};
  return kKinds[static_cast<size_t>(kind)];
}

Reader::Reader(Sources sources) : sources_(std::move(sources)) {
  if (!sources_.nvml) return;
  auto loaded = sources_.nvml();
  if (loaded.ok()) {
    nvml_ = *loaded;
  } else {
    no_nvlink_ = loaded.status().message();
  }
}

Reading Reader::Read() {
  Reading reading{.at = Clock::now(), .devices = {}};
  for (const std::string& name : NamesIn(sources_.root / "sys/class/net")) {
    std::error_code error;  // Beside the interfaces there may be files, such as bonding_masters.
    if (fs::is_directory(sources_.root / "sys/class/net" / name, error))
      reading.devices.push_back(ReadInterface(name));
  }
  for (const std::string& name : NamesIn(sources_.root / "sys/class/infiniband")) {
    for (const std::string& port : NamesIn(sources_.root / "sys/class/infiniband" / name / "ports"))
      reading.devices.push_back(ReadPort(name, port));
  }
  ReadTcp(reading);
  ReadNvlink(reading);
  return reading;
}

std::vector<std::string> Reader::Troubles() { return std::exchange(troubles_, {}); }

void Reader::Complain(const std::string& what, std::string text) {
  if (complained_.insert(what).second) troubles_.push_back(std::move(text));
}

std::optional<Count> Reader::ReadCount(const Path& file, uint64_t unit) {
  if (const auto value = ParseNumber<uint64_t>(ReadLine(file))) {
    if (unit == kWord && *value == kSaturated)
      Complain(file, StrCat(file.native(),
                            " has reached its highest value and counts no further; clear it "
                            "(perfquery -R)"));
    return Count{.value = *value, .unit = unit};
  }
  const UniqueFd opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  const int error = opened.valid() ? 0 : errno;
  if (error == ENOENT) return std::nullopt;
  const bool forbidden = error == EACCES || error == EPERM;
  Complain(file,
           StrCat(file.native(), " cannot be read",
                  error != 0 ? StrCat(": ", ErrnoText(error)) : std::string(": it has no number"),
                  forbidden ? "; run as root, or let the container see it" : "; check its driver (dmesg)",
                  "; the others are counted"));
  return std::nullopt;
}

std::optional<Count> Reader::Sum(const Path& folder, std::initializer_list<const char*> names) {
  std::optional<Count> sum;
  for (const char* name : names) Add(sum, ReadCount(folder / name));
  return sum;
}

Device Reader::ReadInterface(const std::string& name) {
  const Path folder = sources_.root / "sys/class/net" / name / "statistics";
  Device device{.name = name, .kind = DeviceKind::kInterface, .counts = {}};
  device.counts[Quantity::kSentBytes] = ReadCount(folder / "tx_bytes");
  device.counts[Quantity::kReceivedBytes] = ReadCount(folder / "rx_bytes");
  device.counts[Quantity::kSentPackets] = ReadCount(folder / "tx_packets");
  device.counts[Quantity::kReceivedPackets] = ReadCount(folder / "rx_packets");
  device.counts[Quantity::kDrops] = Sum(folder, {"rx_dropped", "tx_dropped"});
  if (sources_.driver) {
    const auto driver = sources_.driver(name);
    device.counts[Quantity::kPausesSent] = Pauses(driver, "tx");
    device.counts[Quantity::kPausesReceived] = Pauses(driver, "rx");
  }
  return device;
}

// The names of hw_counters are each driver's own: those of mlx5, bnxt_re, irdma, efa and rxe.
Device Reader::ReadPort(const std::string& name, const std::string& port) {
  const Path folder = sources_.root / "sys/class/infiniband" / name / "ports" / port;
  const Path standard = folder / "counters";
  Path driver = folder / "hw_counters";
  std::error_code error;  // Of a device of one port they may be the device's.
  if (!fs::exists(driver, error)) driver = sources_.root / "sys/class/infiniband" / name / "hw_counters";
  Device device{.name = StrCat(name, ":", port), .kind = DeviceKind::kRdma, .counts = {}};
  device.counts[Quantity::kSentBytes] = ReadCount(standard / "port_xmit_data", kWord);
  device.counts[Quantity::kReceivedBytes] = ReadCount(standard / "port_rcv_data", kWord);
  device.counts[Quantity::kSentPackets] = ReadCount(standard / "port_xmit_packets");
  device.counts[Quantity::kReceivedPackets] = ReadCount(standard / "port_rcv_packets");
  if (!device.counts[Quantity::kSentPackets])
    device.counts[Quantity::kSentPackets] = Sum(driver, {"sent_pkts", "tx_pkts"});
  if (!device.counts[Quantity::kReceivedPackets])
    device.counts[Quantity::kReceivedPackets] = Sum(driver, {"rcvd_pkts", "rx_pkts"});
  if (!device.counts[Quantity::kSentBytes]) device.counts[Quantity::kSentBytes] = Sum(driver, {"tx_bytes"});
  if (!device.counts[Quantity::kReceivedBytes])
    device.counts[Quantity::kReceivedBytes] = Sum(driver, {"rx_bytes"});
  device.counts[Quantity::kRetransmissions] =
      Sum(driver,
          {"packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "to_retransmits",
           "seq_err_naks_rcvd", "rnr_naks_rcvd", "tcpRetransSegs", "retrans_pkts", "completer_retry_err"});
  device.counts[Quantity::kCnpsSent] = Sum(driver, {"np_cnp_sent", "tx_cnp_pkts", "cnpSent"});
  device.counts[Quantity::kCnpsReceived] = Sum(driver, {"rp_cnp_handled", "rx_cnp_pkts", "cnpHandled"});
  device.counts[Quantity::kDrops] = Sum(standard, {"port_xmit_discards", "port_rcv_errors"});
  return device;
}

void Reader::ReadTcp(Reading& reading) {
  std::ifstream file(sources_.root / "proc/net/snmp");
  std::string names;
  std::string values;
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("Tcp:")) (names.empty() ? names : values) = line;
  }
  if (values.empty()) return;
  Device device{.name = "tcp", .kind = DeviceKind::kTcp, .counts = {}};
  device.counts[Quantity::kSentPackets] = Column(names, values, "OutSegs");
  device.counts[Quantity::kReceivedPackets] = Column(names, values, "InSegs");
  device.counts[Quantity::kRetransmissions] = Column(names, values, "RetransSegs");
  reading.devices.push_back(std::move(device));
}

void Reader::ReadNvlink(Reading& reading) {
  if (nvml_ == nullptr) return;
  const auto count = nvml_->Gpus();
  if (!count.ok()) return Complain("nvml", StrCat(count.status().message(), "; the others are counted"));
  for (uint32_t gpu = 0; gpu < *count; ++gpu) {
    const auto bytes = nvml_->NvlinkOf(gpu);
    if (!bytes.ok()) {
      Complain(StrCat("gpu", gpu),
               StrCat("gpu", gpu, ": ", bytes.status().message(), "; the others are counted"));
      continue;
    }
    Device device{.name = StrCat("gpu", gpu), .kind = DeviceKind::kNvlink, .counts = {}};
    device.counts[Quantity::kSentBytes] = Count{.value = bytes->sent};
    device.counts[Quantity::kReceivedBytes] = Count{.value = bytes->received};
    reading.devices.push_back(std::move(device));
  }
}

}  // namespace weightcast::counters
