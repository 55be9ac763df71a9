#include "topology/hardware.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>

#include "base/strings.h"
#include "topology/device_file.h"
#include "topology/gid.h"
#include "topology/nic_wish.h"
#include "topology/pkey.h"

namespace weightcast::topology {
namespace {

using drivers::Ibverbs;

/// libibverbs leaves out what has no device file, as in a container, or no driver.
constexpr std::string_view kNotListed =
    "libibverbs does not list it; give it /dev/infiniband (a container: --device /dev/infiniband), and "
    "install ibverbs-providers (Debian, Ubuntu) or rdma-core (elsewhere)";

/// What `bits`, of which one is set, stands for; 0: newer than we are.
template <typename T, size_t kCount>
T OfBit(const std::array<T, kCount>& meanings, uint8_t bits) {
  const auto at = static_cast<size_t>(std::countr_zero(bits));
  return std::has_single_bit(bits) && at < kCount ? meanings[at] : T{};
}

/// Gb/s of one lane, as links are sold (InfiniBand volume 1, PortInfo.LinkSpeedActive); QDR and FDR10 are
/// one.
constexpr std::array<double, 8> kLaneRates = {2.5, 5, 10, 10, 14, 25, 50, 100};
/// PortInfo.LinkWidthActive.
constexpr std::array<int, 5> kLanes = {1, 4, 8, 12, 2};

std::string_view StateText(ibv_port_state state) {
  static constexpr std::array<std::string_view, 5> kStates = {"unknown", "down", "init", "armed", "active"};
  static_assert(IBV_PORT_DOWN == 1 && IBV_PORT_ACTIVE == 4);
  const auto at = static_cast<size_t>(state);
  return kStates[at < kStates.size() ? at : 0];
}

/// Fills in what only the device knows. The status says why the port cannot be used.
Status Ask(Ibverbs& api, ibv_context* context, const Settings& settings, RdmaPort& port) {
  const auto number = static_cast<uint8_t>(port.port);
  ibv_port_attr attr{};
  if (const int error = api.QueryPort(context, number, &attr); error != 0)
    return Error(Code::kUnavailable, "its port cannot be queried: ", ErrnoText(error),
                 "; check the driver with ibv_devinfo");
  port.state = StateText(attr.state);
  port.link_layer = attr.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand";
  port.gbit_per_second = OfBit(kLaneRates, attr.active_speed) * OfBit(kLanes, attr.active_width);
  // Also of a port that is down: it will be this one.
  const auto gid = ChooseGid(api, context, number, attr, settings.gid_index);
  if (gid.ok()) {
    port.gid = ToString(gid->gid);
    port.gid_index = gid->index;
  }
  if (attr.state != IBV_PORT_ACTIVE)
    return Error(Code::kUnavailable, "its port is not active but ", port.state,
                 attr.state == IBV_PORT_INIT ? "; start a subnet manager" : "; check cable and switch");
  const auto pkey = ChoosePkey(api, context, number, attr, settings.pkey);
  return gid.ok() ? pkey.status() : gid.status();
}

class Looker {
 public:
  Looker(const Settings& settings, const Sysfs& sysfs)
      : settings_(settings), sysfs_(sysfs), wish_(settings.nics) {}

  /// All ports of a device that libibverbs knows.
  void Add(Ibverbs& api, ibv_device* device) {
    ibv_context* const context = api.OpenDevice(device);
    const int open_error = errno;
    if (context == nullptr) {
      Add(device->name, ReasonNotOpened(*device, open_error));
      return;
    }
    ibv_device_attr attr{};
    const int error = api.QueryDevice(context, &attr);
    for (int number = 1; error == 0 && number <= attr.phys_port_cnt; ++number) {
      RdmaPort port = Start(device->name, number);
      if (attr.phys_port_cnt > 1) port.name += StrCat(":", number);
      if (const Status usable = Ask(api, context, settings_, port); !usable.ok())
        port.refused = usable.message();
      // Also one that is down: it is opened, and waited for.
      if (wish_.Allows(port.device, number) && ++opened_ > kMaxNics)
        port.refused = StrCat("too many: a process uses at most ", kMaxNics, "; choose them in setting nics");
      Finish(std::move(port));
    }
    api.CloseDevice(context);
    if (error != 0)
      Add(device->name,
          StrCat("cannot be queried: ", ErrnoText(error), "; check its driver with ibv_devinfo"));
  }
  /// A device that can only be looked at.
  void Add(const std::string& device, std::string refused) {
    RdmaPort port = Start(device, 1);
    port.refused = std::move(refused);
    Finish(std::move(port));
  }
  [[nodiscard]] bool Has(std::string_view device) const {
    return std::ranges::any_of(ports_, [&](const RdmaPort& port) { return port.device == device; });
  }
  std::vector<RdmaPort> Take() { return std::move(ports_); }

 private:
  [[nodiscard]] RdmaPort Start(const std::string& device, int number) const {
    RdmaPort port;
    port.name = port.device = device;
    port.port = number;
    port.state = port.link_layer = "unknown";
    port.place = sysfs_.PlaceOf(device);
    return port;
  }
  void Finish(RdmaPort port) {
    const auto gid = port.gid_index < 0 ? std::nullopt : std::optional(port.gid_index);
    port.interface = sysfs_.InterfaceOf(port.device, port.port, gid);
    if (port.gbit_per_second == 0) port.gbit_per_second = sysfs_.RateOf(port.device, port.port);
    if (!wish_.Allows(port.device, port.port)) port.refused = "setting nics leaves it out";
    ports_.push_back(std::move(port));
  }

  const Settings& settings_;
  const Sysfs& sysfs_;
  NicWish wish_;
  size_t opened_ = 0;
  std::vector<RdmaPort> ports_;
};

/// Only NICs that are used; the indices are those of `ports`.
std::vector<std::vector<Tier>> Nearest(const Hardware& hardware, std::span<const Place> devices) {
  std::vector<Place> places;
  std::vector<size_t> numbers;
  for (size_t i = 0; i < hardware.ports.size(); ++i) {
    if (!hardware.ports[i].refused.empty()) continue;
    places.push_back(hardware.ports[i].place);
    numbers.push_back(i);
  }
  auto all = NearestNics(devices, places, hardware.nodes.size());
  for (auto& tiers : all) {
    for (Tier& tier : tiers) {
      for (size_t& nic : tier.nics) nic = numbers[nic];
    }
  }
  return all;
}

}  // namespace

std::vector<std::vector<Tier>> Hardware::NearestToGpus() const {
  std::vector<Place> places;
  places.reserve(gpus.size());
  for (const Gpu& gpu : gpus) places.push_back(gpu.place);
  return Nearest(*this, places);
}

std::vector<std::vector<Tier>> Hardware::NearestToNodes() const {
  std::vector<Place> places;
  places.reserve(nodes.size());
  for (const int node : nodes) places.push_back({.path = {}, .node = node});
  return Nearest(*this, places);
}

Hardware LookAtHardware(const Settings& settings, const Result<std::shared_ptr<Ibverbs>>& api,
                        const Sysfs& sysfs) {
  Hardware hardware;
  hardware.rdma = api.status();
  hardware.gpus = sysfs.Gpus();
  hardware.nodes = sysfs.Nodes();
  Looker looker(settings, sysfs);
  int count = 0;
  ibv_device** const list = api.ok() ? (*api)->GetDeviceList(&count) : nullptr;
  for (int i = 0; list != nullptr && i < count; ++i) looker.Add(**api, list[i]);
  if (list != nullptr) (*api)->FreeDeviceList(list);
  for (const std::string& device : sysfs.RdmaDevices()) {
    if (looker.Has(device)) continue;
    looker.Add(device, api.ok() ? std::string(kNotListed) : api.status().message());
  }
  hardware.ports = looker.Take();
  return hardware;
}

}  // namespace weightcast::topology
