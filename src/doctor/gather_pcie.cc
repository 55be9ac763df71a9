#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "base/strings.h"
#include "doctor/gather.h"
#include "topology/files.h"
#include "topology/nearest.h"
#include "topology/sysfs.h"

namespace weightcast::doctor {
namespace {

namespace fs = std::filesystem;
using topology::NamesIn;
using topology::Place;
using topology::ReadLine;

/// More lanes than PCIe has: what a device that is asleep or gone answers.
constexpr int64_t kMostLanes = 32;
constexpr uint32_t kNetworkClass = 0x02;

int64_t ReadLanes(const fs::path& file) {
  const int64_t lanes = ParseNumber<int64_t>(ReadLine(file)).value_or(0);
  return lanes < 1 || lanes > kMostLanes ? kUnknown : lanes;
}

/// 16 of "16.0 GT/s PCIe"; 0 of "Unknown".
double ReadSpeed(const fs::path& file) {
  const std::string line = ReadLine(file);
  double speed = 0;
  std::from_chars(line.data(), line.data() + line.size(), speed);
  return speed;
}

std::string LinkName(const fs::path& link) {
  std::error_code error;
  const fs::path target = fs::read_symlink(link, error);
  return error ? std::string() : target.filename().string();
}

/// What a port's Access Control Services make of requests between its devices (PCI Express Base
/// Specification 5.0, 7.7.8).
enum class Acs : uint8_t { kUnreadable, kDirect, kRedirects };

Acs ReadAcs(const fs::path& config) {
  static constexpr size_t kPlainSize = 256;  // Without root the kernel gives 64 bytes; PCI has 256.
  static constexpr uint16_t kAcsId = 0x000d;
  static constexpr uint16_t kRedirects = 0x04 | 0x08 | 0x10;  // Requests, completions, upstream forwarding.
  std::ifstream stream(config, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
  const auto word = [&](size_t at) {
    return at + 2 > bytes.size()
               ? 0U
               : static_cast<uint8_t>(bytes[at]) + (unsigned{static_cast<uint8_t>(bytes[at + 1])} << 8);
  };
  if (bytes.size() <= kPlainSize) return Acs::kUnreadable;
  size_t at = kPlainSize;
  for (int left = 64; left > 0 && at >= kPlainSize; --left) {
    if (word(at) == kAcsId) return (word(at + 6) & kRedirects) != 0 ? Acs::kRedirects : Acs::kDirect;
    at = word(at + 2) >> 4;
  }
  return Acs::kDirect;
}

void ReadBridges(const fs::path& pci, const Place& place, PciDevice& facts) {
  facts.acs_readable = true;
  for (const std::string& part : place.path) {
    if (part == facts.address || part.starts_with("pci")) continue;
    const Acs acs = ReadAcs(pci / part / "config");
    facts.acs_readable = facts.acs_readable && acs != Acs::kUnreadable;
    if (acs == Acs::kRedirects) facts.acs_bridges.push_back(part);
  }
}

PciDevice ReadDevice(const fs::path& root, const Place& place, std::string kind, std::string name) {
  const fs::path pci = root / "sys/bus/pci/devices";
  PciDevice facts;
  facts.address = place.address();
  facts.kind = std::move(kind);
  facts.name = std::move(name);
  facts.node = place.node;
  const fs::path folder = pci / facts.address;
  facts.driver = LinkName(folder / "driver");
  facts.width = ReadLanes(folder / "current_link_width");
  facts.max_width = ReadLanes(folder / "max_link_width");
  facts.speed = ReadSpeed(folder / "current_link_speed");
  facts.max_speed = ReadSpeed(folder / "max_link_speed");
  if (place.path.size() > 2) {
    const fs::path above = pci / place.path[place.path.size() - 2];
    facts.slot_width = ReadLanes(above / "max_link_width");
    facts.slot_speed = ReadSpeed(above / "max_link_speed");
  }
  facts.iommu = ReadLine(folder / "iommu_group/type");
  ReadBridges(pci, place, facts);
  return facts;
}

std::string NameOf(const topology::Gpu& gpu) {
  char ids[16];
  std::snprintf(ids, sizeof ids, "%04x:%04x", unsigned{gpu.vendor_id}, unsigned{gpu.device_id});
  return StrCat(gpu.vendor, " ", ids);
}

std::vector<std::string> NicsWithoutRdma(const fs::path& root) {
  std::vector<std::string> found;
  const fs::path pci = root / "sys/bus/pci/devices";
  for (const std::string& address : NamesIn(pci)) {
    const fs::path folder = pci / address;
    if (topology::ReadHex(folder / "class") >> 16 != kNetworkClass) continue;
    const std::string driver = LinkName(folder / "driver");
    std::error_code error;
    if (!driver.empty() && !fs::exists(folder / "infiniband", error))
      found.push_back(StrCat(address, " ", driver));
  }
  return found;
}

}  // namespace

PcieFacts GatherPcie(const Sources& sources) {
  const topology::Sysfs sysfs(sources.root / "sys");
  PcieFacts facts;
  facts.nodes = static_cast<int64_t>(sysfs.Nodes().size());
  std::vector<Place> nics;
  const std::vector<std::string> names = sysfs.RdmaDevices();
  for (const std::string& name : names) {
    nics.push_back(sysfs.PlaceOf(name));
    if (nics.back().address().empty()) continue;  // Made by software.
    facts.devices.push_back(ReadDevice(sources.root, nics.back(), "NIC", name));
  }
  std::vector<Place> gpus;
  for (const topology::Gpu& gpu : sysfs.Gpus()) gpus.push_back(gpu.place);
  const auto nearest = topology::NearestNics(gpus, nics, static_cast<size_t>(facts.nodes));
  size_t number = 0;
  for (const topology::Gpu& gpu : sysfs.Gpus()) {
    PciDevice one = ReadDevice(sources.root, gpu.place, "GPU", NameOf(gpu));
    if (const auto& tiers = nearest[number++]; !tiers.empty()) {
      one.nearness = topology::ToString(tiers.front().distance.nearness);
      for (const size_t nic : tiers.front().nics) one.nearest_nics.push_back(names[nic]);
    }
    facts.devices.push_back(std::move(one));
  }
  facts.without_rdma = NicsWithoutRdma(sources.root);
  return facts;
}

}  // namespace weightcast::doctor
