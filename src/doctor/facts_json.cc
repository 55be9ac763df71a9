#include "doctor/facts_json.h"

#include <nlohmann/json.hpp>

#include "base/advice.h"
#include "base/json.h"
#include "base/strings.h"

namespace weightcast::doctor {

namespace {
using Json = nlohmann::json;
}

// Every field once more: the compiler notices a name that is none, the round trip test one that is left out.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Interface, name, state, mtu, mbit_per_second, addresses)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(HostFacts, name, kernel, container, interfaces,
                                                default_interface)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NameFacts, addresses, error)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RouteFacts, target, source, interface, error)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ClockFacts, reference, ahead_seconds, error, synchronised)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LimitFacts, descriptors, memlock_bytes, shm_bytes, cgroup,
                                                cgroup_memory_bytes, cgroup_memory_used, cgroup_processes,
                                                ptrace_scope, capabilities, seccomp)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ModuleFacts, readable, loaded)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(GidEntry, index, gid, type)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RdmaPort, name, device, number, state, physical_state,
                                                link_layer, rate, lid, sm_lid, gids, interface, interface_mtu)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RdmaDevice, name, firmware, board, verbs, writable,
                                                virtual_function, virtual_functions)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RdmaFacts, devices, ports)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(VerbsPort, name, active_mtu, max_mtu)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(VerbsFacts, error, listed, not_opened, ports)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(QosPort, interface, traffic_class, trust, pfc, ecn)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(QosFacts, ports)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(PciDevice, address, kind, name, driver, node, width,
                                                max_width, slot_width, speed, max_speed, slot_speed, iommu,
                                                acs_bridges, acs_readable, nearest_nics, nearness)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(PcieFacts, nodes, devices, without_rdma)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(CpuFacts, governors, driver)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(CudaGpu, name, address, reaches, nvlinks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(GpuFacts, kernel_driver, closed_devices, nv_switches)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(CudaFacts, error, version, gpus)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Facts, environment, settings, missed, host, names, route,
                                                clock, limits, modules, rdma, verbs, qos, pcie, cpu, gpu,
                                                cuda)

std::string FactsJson(const Facts& facts) { return JsonText(Json(facts)); }

Status AddFacts(std::string_view json, std::string_view name, Facts& facts) {
  const Json parsed = ParseJson(json);
  const std::string member(name);
  if (!parsed.is_object() || !parsed.contains(member))
    return Error(Code::kCorrupt, "gave ", json.size(), " bytes without facts", kReportBug);
  try {
    Json all(facts);
    all[member] = parsed.at(member);
    facts = all.get<Facts>();
  } catch (const Json::exception& error) {
    return Error(Code::kCorrupt, "gave malformed facts (", error.what(), ")", kReportBug);
  }
  return Status::Ok();
}

}  // namespace weightcast::doctor
