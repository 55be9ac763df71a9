#include "tools/info/hardware.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/strings.h"
#include "tools/common/output.h"
#include "transport/transport.h"

namespace weightcast::tools {
namespace {

using topology::Hardware;
using topology::RdmaPort;
using topology::Tier;

std::string Or(std::string_view text) { return std::string(text.empty() ? "-" : text); }
std::string NodeText(int node) { return node < 0 ? "-" : StrCat(node); }

bool IsNamed(std::string_view setting, std::string_view name) {
  const std::string all = StrCat(",", setting, ",");
  return setting.empty() || all.find(StrCat(",", name, ",")) != std::string::npos;
}

Status Check(const transport::TransportFactory& factory, const Settings& settings, const Hardware& hardware) {
  if (!IsNamed(settings.transport, factory.name))
    return {Code::kUnavailable, "left out by setting transport; name it there to use it"};
  if (const auto made = factory.create({.settings = settings, .self = 1}); !made.ok()) return made.status();
  // It waits for a port to come up, but nothing can use it now.
  if (factory.name == "verbs" &&
      std::ranges::none_of(hardware.ports, &std::string::empty, &RdmaPort::refused))
    return {Code::kUnavailable, "no RDMA port can be used now; each NIC's line says why; fix one of them"};
  return Status::Ok();
}

std::string HexText(uint16_t id) {
  char text[8];
  std::snprintf(text, sizeof text, "%04x", unsigned{id});
  return text;
}

std::string NamesOf(const Hardware& hardware, const Tier& tier) {
  return Join(tier.nics, ", ", [&](size_t nic) { return hardware.ports[nic].name; });
}

/// The nearest tier in two columns, and the names of the next.
void AddTiers(std::vector<std::string>& row, const Hardware& hardware, const std::vector<Tier>& tiers) {
  row.push_back(tiers.empty() ? "-" : NamesOf(hardware, tiers[0]));
  row.emplace_back(tiers.empty() ? "-" : ToString(tiers[0].distance.nearness));
  row.push_back(tiers.size() < 2 ? "-" : NamesOf(hardware, tiers[1]));
}

std::string PortsText(const Hardware& hardware) {
  if (hardware.ports.empty()) return "RDMA devices: none\n";
  Table table({"NIC", "state", "link", "Gb/s", "GID", "index", "interface", "PCIe", "NUMA", "used"});
  for (const RdmaPort& port : hardware.ports) {
    table.Add({port.name, port.state, port.link_layer,
               port.gbit_per_second > 0 ? StrCat(port.gbit_per_second) : "-", Or(port.gid),
               port.gid_index < 0 ? "-" : StrCat(port.gid_index), Or(port.interface),
               Or(port.place.address()), NodeText(port.place.node),
               port.refused.empty() ? "yes" : StrCat("no: ", port.refused)});
  }
  return table.ToString();
}

std::string GpusText(const Hardware& hardware) {
  if (hardware.gpus.empty()) return "GPUs: none\n";
  Table table({"GPU", "PCIe", "NUMA", "nearest NICs", "distance", "then"});
  const auto nearest = hardware.NearestToGpus();
  for (size_t i = 0; i < hardware.gpus.size(); ++i) {
    const topology::Gpu& gpu = hardware.gpus[i];
    std::vector<std::string> row = {
        StrCat(gpu.vendor, " ", HexText(gpu.vendor_id), ":", HexText(gpu.device_id)), Or(gpu.place.address()),
        NodeText(gpu.place.node)};
    AddTiers(row, hardware, nearest[i]);
    table.Add(std::move(row));
  }
  return table.ToString();
}

/// Empty where all memory is equally near.
std::string NodesText(const Hardware& hardware) {
  if (hardware.nodes.size() < 2 || hardware.ports.empty()) return {};
  Table table({"memory of", "nearest NICs", "distance", "then"});
  const auto nearest = hardware.NearestToNodes();
  for (size_t i = 0; i < hardware.nodes.size(); ++i) {
    std::vector<std::string> row = {StrCat("NUMA node ", hardware.nodes[i])};
    AddTiers(row, hardware, nearest[i]);
    table.Add(std::move(row));
  }
  return StrCat("\n", table.ToString());
}

Json NumberOrNull(int number) { return number < 0 ? Json() : Json(number); }

Json PortJson(const RdmaPort& port) {
  return {{"name", port.name},
          {"device", port.device},
          {"port", port.port},
          {"state", port.state},
          {"link_layer", port.link_layer},
          {"gbit_per_second", port.gbit_per_second > 0 ? Json(port.gbit_per_second) : Json()},
          {"gid", TextOrNull(port.gid)},
          {"gid_index", NumberOrNull(port.gid_index)},
          {"interface", TextOrNull(port.interface)},
          {"pci_address", TextOrNull(port.place.address())},
          {"numa_node", NumberOrNull(port.place.node)},
          {"used", port.refused.empty()},
          {"reason", TextOrNull(port.refused)}};
}

Json TiersJson(const Hardware& hardware, const std::vector<Tier>& tiers) {
  const auto name_of = [&](size_t nic) { return hardware.ports[nic].name; };
  return JsonArray(tiers, [&](const Tier& tier) -> Json {
    return {{"distance", ToString(tier.distance.nearness)}, {"names", JsonArray(tier.nics, name_of)}};
  });
}

}  // namespace

std::vector<TransportCheck> CheckTransports(const Settings& settings, const Hardware& hardware) {
  std::vector<TransportCheck> checks;
  for (const auto& factory : transport::BuiltinTransports())
    checks.push_back({std::string(factory.name), Check(factory, settings, hardware)});
  return checks;
}

std::string HardwareText(const std::vector<TransportCheck>& transports, const Hardware& hardware) {
  Table table({"transport", "works"});
  for (const TransportCheck& one : transports)
    table.Add({one.name, one.works.ok() ? "yes" : StrCat("no: ", one.works.message())});
  return StrCat(table.ToString(), "\n", PortsText(hardware), "\n", GpusText(hardware), NodesText(hardware));
}

Json HardwareJson(const std::vector<TransportCheck>& transports, const Hardware& hardware) {
  Json checks = JsonArray(transports, [](const TransportCheck& one) -> Json {
    return {{"name", one.name},
            {"works", one.works.ok()},
            {"reason", TextOrNull(one.works.ok() ? "" : one.works.message())}};
  });
  Json gpus = Json::array();
  const auto to_gpus = hardware.NearestToGpus();
  for (size_t i = 0; i < hardware.gpus.size(); ++i) {
    const topology::Gpu& gpu = hardware.gpus[i];
    gpus.push_back({{"vendor", gpu.vendor},
                    {"vendor_id", HexText(gpu.vendor_id)},
                    {"device_id", HexText(gpu.device_id)},
                    {"pci_address", TextOrNull(gpu.place.address())},
                    {"numa_node", NumberOrNull(gpu.place.node)},
                    {"nics", TiersJson(hardware, to_gpus[i])}});
  }
  Json nodes = Json::array();
  const auto to_nodes = hardware.NearestToNodes();
  for (size_t i = 0; i < hardware.nodes.size(); ++i)
    nodes.push_back({{"node", hardware.nodes[i]}, {"nics", TiersJson(hardware, to_nodes[i])}});
  return {{"transport_checks", std::move(checks)},
          {"rdma_ports", JsonArray(hardware.ports, PortJson)},
          {"gpus", std::move(gpus)},
          {"numa_nodes", std::move(nodes)}};
}

}  // namespace weightcast::tools
