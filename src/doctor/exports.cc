#include "doctor/exports.h"

#include <set>
#include <vector>

#include "base/strings.h"
#include "doctor/checks.h"

namespace weightcast::doctor {
namespace {

/// NCCL takes one index for all its ports.
void AddGidIndex(const std::vector<const RdmaPort*>& ports, std::map<std::string, std::string>& exports) {
  std::set<int64_t> indices;
  for (const RdmaPort* port : ports) {
    if (port->link_layer == "Ethernet") indices.insert(BestGid(*port)->index);
  }
  if (indices.size() == 1) exports["NCCL_IB_GID_INDEX"] = StrCat(*indices.begin());
}

void AddRdma(const Facts& facts, std::map<std::string, std::string>& exports) {
  std::vector<const RdmaPort*> usable;
  std::vector<std::string> others;
  for (const RdmaPort& port : facts.rdma.ports) {
    if (!IsWanted(facts, port)) continue;
    if (IsUsable(port)) {
      usable.push_back(&port);
    } else {
      others.push_back(port.name);
    }
  }
  if (usable.empty()) {
    if (!facts.missed.contains("rdma")) exports["NCCL_IB_DISABLE"] = "1";
    return;
  }
  const std::string names = Join(usable, ",", &RdmaPort::name);
  exports["NCCL_IB_HCA"] = StrCat("=", names);
  if (!others.empty()) exports["WEIGHTCAST_NICS"] = names;
  AddGidIndex(usable, exports);
  if (const auto traffic_class = TrafficClass(facts); traffic_class && *traffic_class != 0)
    exports["NCCL_IB_TC"] = StrCat(*traffic_class);
}

std::string Quoted(const std::string& value) {
  static constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:,=/@^+-";
  // zsh expands a word that begins with "=".
  if (!value.empty() && value[0] != '=' && value.find_first_not_of(kPlain) == std::string::npos) return value;
  std::string text = "'";
  for (const char letter : value) text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return text + "'";
}

}  // namespace

std::map<std::string, std::string> ExportsFor(const Facts& facts) {
  std::map<std::string, std::string> exports;
  if (const std::string interface = MainInterface(facts); !interface.empty()) {
    exports["NCCL_SOCKET_IFNAME"] = StrCat("=", interface);
    exports["GLOO_SOCKET_IFNAME"] = interface;
  }
  AddRdma(facts, exports);
  if (facts.limits.ptrace_scope == "1" && Setting(facts, "ptracer") != "any")
    exports["WEIGHTCAST_PTRACER"] = "peer";
  if (!facts.route.target.empty() && facts.route.error.empty())
    exports["WEIGHTCAST_CONTROLLER"] = facts.route.target;
  return exports;
}

std::string ExportsText(const std::map<std::string, std::string>& exports) {
  std::string text;
  for (const auto& [name, value] : exports) text += StrCat("export ", name, "=", Quoted(value), "\n");
  return text;
}

}  // namespace weightcast::doctor
