#include "topology/sysfs.h"

#include <algorithm>
#include <charconv>

#include "base/strings.h"
#include "topology/files.h"

namespace weightcast::topology {
namespace {

namespace fs = std::filesystem;

/// A bond on a bridge on a VLAN, and an end should two point at each other.
constexpr int kMaxDepth = 4;
constexpr uint32_t kDisplayClass = 0x03;
/// "Processing accelerator": what large AMD GPUs say they are.
constexpr uint32_t kAcceleratorClass = 0x12;
constexpr uint16_t kNvidia = 0x10de;
constexpr uint16_t kAmd = 0x1002;
constexpr uint16_t kIntel = 0x8086;

/// "0000:17:00.0".
bool IsPciAddress(std::string_view part) {
  static constexpr std::string_view kShape = ":hh:hh.h";
  if (part.size() < kShape.size() + 4) return false;
  const std::string_view end = part.substr(part.size() - kShape.size());
  return end[0] == ':' && end[3] == ':' && end[6] == '.' &&
         part.find_first_not_of("0123456789abcdef:.") == std::string_view::npos;
}

/// Of what `link` points at: a PCI device, or something below one (a virtio device, a part of a card).
Place PlaceBehind(const fs::path& link) {
  Place place;
  std::error_code error;
  const fs::path real = fs::canonical(link, error);
  if (error) return place;
  fs::path at;
  fs::path device;
  for (const fs::path& part : real) {
    at /= part;
    const std::string name = part.string();
    if (IsHostBridge(name) || (IsPciAddress(name) && !place.path.empty())) place.path.push_back(name);
    if (IsPciAddress(name)) device = at;
  }
  if (const auto node = ParseNumber<int>(ReadLine(device / "numa_node"))) place.node = *node;
  return place;
}

/// What two devices below one interface share.
Place Shared(const Place& a, const Place& b) {
  const auto end = std::ranges::mismatch(a.path, b.path).in1;
  return {.path = {a.path.begin(), end}, .node = a.node == b.node ? a.node : -1};
}

std::string_view VendorOf(uint16_t id) {
  if (id == kNvidia) return "NVIDIA";
  if (id == kAmd) return "AMD";
  return id == kIntel ? "Intel" : "";
}

}  // namespace

fs::path Sysfs::DeviceFolder(const std::string& device) const {
  return root_ / "class" / "infiniband" / device;
}

std::vector<std::string> Sysfs::RdmaDevices() const { return NamesIn(root_ / "class" / "infiniband"); }

Place Sysfs::PlaceOf(const std::string& device) const {
  const fs::path folder = DeviceFolder(device);
  std::error_code error;
  if (fs::exists(folder / "device", error)) return PlaceBehind(folder / "device");
  return PlaceOfInterface(ReadLine(folder / "parent"), 0);
}

Place Sysfs::PlaceOfInterface(const std::string& interface, int depth) const {
  if (interface.empty() || depth == kMaxDepth) return {};
  const fs::path folder = root_ / "class" / "net" / interface;
  std::error_code error;
  if (fs::exists(folder / "device", error)) return PlaceBehind(folder / "device");
  static constexpr std::string_view kLower = "lower_";
  std::optional<Place> place;
  for (const std::string& name : NamesIn(folder)) {
    if (!name.starts_with(kLower)) continue;
    const Place lower = PlaceOfInterface(name.substr(kLower.size()), depth + 1);
    place = place ? Shared(*place, lower) : lower;
  }
  return place.value_or(Place{});
}

std::string Sysfs::InterfaceOf(const std::string& device, int port, std::optional<int> gid) const {
  const fs::path folder = DeviceFolder(device);
  if (gid) {
    const fs::path names = folder / "ports" / StrCat(port) / "gid_attrs" / "ndevs";
    if (std::string name = ReadLine(names / StrCat(*gid)); !name.empty()) return name;
  }
  if (std::string name = ReadLine(folder / "parent"); !name.empty()) return name;
  const fs::path interfaces = folder / "device" / "net";
  const std::vector<std::string> names = NamesIn(interfaces);
  // Several are the ports of one PCI device, which count from 0 here.
  for (const std::string& name : names) {
    if (ParseNumber<int>(ReadLine(interfaces / name / "dev_port")) == port - 1) return name;
  }
  return names.empty() ? std::string() : names.front();
}

double Sysfs::RateOf(const std::string& device, int port) const {
  // "100 Gb/sec (4X EDR)"
  const std::string line = ReadLine(DeviceFolder(device) / "ports" / StrCat(port) / "rate");
  double rate = 0;
  std::from_chars(line.data(), line.data() + line.size(), rate);
  return rate;
}

std::vector<Gpu> Sysfs::Gpus() const {
  std::vector<Gpu> gpus;
  const fs::path devices = root_ / "bus" / "pci" / "devices";
  for (const std::string& name : NamesIn(devices)) {
    const fs::path folder = devices / name;
    const uint32_t kind = ReadHex(folder / "class") >> 16;
    if (kind != kDisplayClass && kind != kAcceleratorClass) continue;
    const auto vendor = static_cast<uint16_t>(ReadHex(folder / "vendor"));
    const std::string_view maker = VendorOf(vendor);
    if (maker.empty() || (kind == kAcceleratorClass && vendor != kAmd)) continue;
    gpus.push_back({.place = PlaceBehind(folder),
                    .vendor = std::string(maker),
                    .vendor_id = vendor,
                    .device_id = static_cast<uint16_t>(ReadHex(folder / "device"))});
  }
  return gpus;
}

std::vector<int> Sysfs::Nodes() const {
  std::vector<int> nodes;
  static constexpr std::string_view kNode = "node";
  for (const std::string& name : NamesIn(root_ / "devices" / "system" / "node")) {
    if (!name.starts_with(kNode)) continue;
    if (const auto node = ParseNumber<int>(std::string_view(name).substr(kNode.size())))
      nodes.push_back(*node);
  }
  return nodes;
}

}  // namespace weightcast::topology
