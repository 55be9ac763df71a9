#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "base/available.h"
#include "base/strings.h"
#include "doctor/gather.h"
#include "topology/files.h"

namespace weightcast::doctor {
namespace {

namespace fs = std::filesystem;
using topology::NamesIn;
using topology::ReadLine;

/// Where cgroup v1 means "no limit" it writes the largest multiple of a page.
constexpr int64_t kNoLimitOfV1 = int64_t{1} << 60;

/// The value of "Name:\tvalue" in /proc/self/status.
std::string StatusField(const fs::path& file, std::string_view name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    const size_t at = line.find_first_not_of(" \t", name.size() + 1);
    return at == std::string::npos ? std::string() : line.substr(at);
  }
  return {};
}

int64_t ReadLimit(const fs::path& file) {
  const std::string line = ReadLine(file);
  if (line == "max") return kNoLimit;
  const int64_t value = ParseNumber<int64_t>(line).value_or(kUnknown);
  return value >= kNoLimitOfV1 ? kNoLimit : value;
}

bool IsLess(int64_t one, int64_t other) { return one != kUnknown && (other == kUnknown || one < other); }

void ReadGroup(const fs::path& folder, const std::string& path, const char* limit, const char* used,
               LimitFacts& facts) {
  if (const int64_t bytes = ReadLimit(folder / limit); IsLess(bytes, facts.cgroup_memory_bytes)) {
    facts.cgroup_memory_bytes = bytes;
    facts.cgroup_memory_used = ReadLimit(folder / used);
    facts.cgroup = path.empty() ? "/" : path;
  }
  if (const int64_t count = ReadLimit(folder / "pids.max"); IsLess(count, facts.cgroup_processes))
    facts.cgroup_processes = count;
}

void ReadControlGroups(const fs::path& root, LimitFacts& facts) {
  const std::string mount = root / "sys/fs/cgroup";
  for (const auto& [controllers, path] : ControlGroupsOf(root)) {
    if (controllers.empty()) ReadGroup(mount + path, path, "memory.max", "memory.current", facts);
    if (controllers == "memory" || controllers == "pids")
      ReadGroup(StrCat(mount, "/", controllers, path), path, "memory.limit_in_bytes", "memory.usage_in_bytes",
                facts);
  }
}

}  // namespace

LimitFacts GatherLimits(const Sources& sources) {
  LimitFacts facts;
  facts.descriptors = sources.descriptors;
  facts.memlock_bytes = sources.memlock_bytes;
  facts.shm_bytes = sources.shm_bytes;
  ReadControlGroups(sources.root, facts);
  facts.ptrace_scope = ReadLine(sources.root / "proc/sys/kernel/yama/ptrace_scope");
  facts.capabilities = StatusField(sources.root / "proc/self/status", "CapEff");
  facts.seccomp = StatusField(sources.root / "proc/self/status", "Seccomp");
  return facts;
}

ModuleFacts GatherModules(const Sources& sources) {
  static constexpr std::array<std::string_view, 20> kOfInterest = {
      "ib_core", "ib_uverbs", "ib_umad",        "ib_ipoib",   "rdma_cm",  "rdma_ucm", "mlx5_core", "mlx5_ib",
      "mlx4_ib", "bnxt_re",   "irdma",          "efa",        "rdma_rxe", "siw",      "iw_cxgb4",  "qedr",
      "nvidia",  "amdgpu",    "nvidia_peermem", "nv_peer_mem"};
  ModuleFacts facts;
  for (const std::string& name : NamesIn(sources.root / "sys/module")) {
    facts.readable = true;
    if (std::ranges::find(kOfInterest, name) != kOfInterest.end()) facts.loaded.push_back(name);
  }
  return facts;
}

CpuFacts GatherCpu(const Sources& sources) {
  CpuFacts facts;
  const fs::path folder = sources.root / "sys/devices/system/cpu";
  for (const std::string& name : NamesIn(folder)) {
    if (!name.starts_with("cpu")) continue;
    const std::string governor = ReadLine(folder / name / "cpufreq/scaling_governor");
    if (governor.empty()) continue;
    ++facts.governors[governor];
    facts.driver = ReadLine(folder / name / "cpufreq/scaling_driver");
  }
  return facts;
}

GpuFacts GatherGpu(const Sources& sources) {
  GpuFacts facts;
  facts.kernel_driver = ReadLine(sources.root / "proc/driver/nvidia/version");
  const fs::path devices = sources.root / "dev";
  for (const std::string& name : NamesIn(devices)) {
    const bool gpu = name == "nvidiactl" || name == "nvidia-uvm" || name == "kfd" ||
                     (name.starts_with("nvidia") && ParseNumber<int>(std::string_view(name).substr(6)));
    if (gpu && access((devices / name).c_str(), R_OK | W_OK) != 0) facts.closed_devices.push_back(name);
  }
  const fs::path pci = sources.root / "sys/bus/pci/devices";
  for (const std::string& name : NamesIn(pci)) {
    const bool bridge = (topology::ReadHex(pci / name / "class") >> 8) == 0x0680;
    if (bridge && topology::ReadHex(pci / name / "vendor") == 0x10de) ++facts.nv_switches;
  }
  return facts;
}

CudaFacts GatherCuda(const Sources& sources) {
  CudaFacts facts;
  const device::Inventory found = sources.cuda(sources.settings);
  facts.error = found.status.message();
  facts.version = found.driver;
  const auto address_of = [&](int ordinal) {
    const auto at = std::ranges::find(found.gpus, ordinal, [](const auto& one) { return one.gpu.ordinal; });
    return at == found.gpus.end() ? StrCat(ordinal) : at->pci_address;
  };
  for (const device::ListedGpu& one : found.gpus) {
    CudaGpu gpu{.name = one.gpu.name, .address = one.pci_address, .reaches = {}, .nvlinks = {}};
    for (const int other : one.reaches) gpu.reaches.push_back(address_of(other));
    for (const int other : one.linked) gpu.nvlinks.push_back(address_of(other));
    facts.gpus.push_back(std::move(gpu));
  }
  return facts;
}

}  // namespace weightcast::doctor
