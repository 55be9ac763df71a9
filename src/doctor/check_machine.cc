#include <algorithm>
#include <array>
#include <utility>

#include "base/strings.h"
#include "doctor/checks.h"

/// Modules, PCIe, NUMA, processors and GPUs.
namespace weightcast::doctor {
namespace {

bool IsLoaded(const Facts& facts, std::string_view module) {
  return std::ranges::find(facts.modules.loaded, module) != facts.modules.loaded.end();
}

bool HasKind(const Facts& facts, std::string_view kind) {
  return std::ranges::any_of(facts.pcie.devices, [&](const PciDevice& one) { return one.kind == kind; });
}

/// "6.8.0-45-generic" is at least 5.12.
bool KernelIsAtLeast(const Facts& facts, int major, int minor) {
  const std::string& text = facts.host.kernel;
  const size_t dot = text.find('.');
  const auto first = ParseNumber<int>(text.substr(0, dot));
  if (!first || dot == std::string::npos) return false;
  const size_t end = text.find_first_not_of("0123456789", dot + 1);
  const auto second = ParseNumber<int>(text.substr(dot + 1, end == std::string::npos ? end : end - dot - 1));
  return std::pair(*first, second.value_or(0)) >= std::pair(major, minor);
}

/// The RDMA half of a NIC's driver.
std::string RdmaModuleOf(std::string_view driver) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kHalves = {{
      {"mlx5_core", "mlx5_ib"},
      {"mlx4_core", "mlx4_ib"},
      {"bnxt_en", "bnxt_re"},
      {"ice", "irdma"},
      {"qede", "qedr"},
      {"cxgb4", "iw_cxgb4"},
      {"ionic", "ionic_rdma"},
      {"hns3", "hns_roce_hw_v2"},
  }};
  const auto found = std::ranges::find(kHalves, driver, [](const auto& half) { return half.first; });
  return found == kHalves.end() ? std::string() : std::string(found->second);
}

/// Whether any NIC lacks its RDMA half.
bool CheckHalves(const Facts& facts, Findings& findings) {
  bool missing = false;
  for (const std::string& nic : facts.pcie.without_rdma) {
    const size_t space = nic.find(' ');
    const std::string module = RdmaModuleOf(std::string_view(nic).substr(space + 1));
    if (module.empty() || IsLoaded(facts, module)) continue;
    missing = true;
    const bool asked = Setting(facts, "transport").find("verbs") != std::string::npos;
    findings.Add(asked ? Level::kFail : Level::kWarn,
                 {.check = "rdma_module",
                  .subject = nic.substr(0, space),
                  .text = StrCat("This NIC can do RDMA, and its module ", module, " is not loaded."),
                  .evidence = StrCat("/sys/module/", module, " is missing; driver ", nic.substr(space + 1)),
                  .remedy = StrCat("modprobe ", module,
                                   "  # if there is none: apt-get install linux-modules-extra-$(uname -r)")});
  }
  return missing;
}

void CheckGpuMemory(const Facts& facts, Findings& findings) {
  const bool nvidia = std::ranges::any_of(
      facts.pcie.devices, [](const PciDevice& one) { return one.name.starts_with("NVIDIA"); });
  if (!nvidia || facts.rdma.devices.empty()) return;
  const bool peermem = IsLoaded(facts, "nvidia_peermem") || IsLoaded(facts, "nv_peer_mem");
  Finding finding{.check = "gpu_memory",
                  .text = peermem ? "NICs reach GPU memory by nvidia_peermem."
                                  : "NICs reach GPU memory as dma-buf, if the GPU driver exports it.",
                  .evidence = StrCat("kernel ", facts.host.kernel, "; nvidia_peermem ",
                                     peermem ? "loaded" : "not loaded")};
  if (peermem || KernelIsAtLeast(facts, 5, 12)) return findings.Ok(finding);
  finding.text = "NICs cannot reach GPU memory: dma-buf needs kernel 5.12, and nvidia_peermem is not loaded.";
  finding.remedy = "modprobe nvidia_peermem";
  findings.Warn(finding);
}

std::string LanesText(int64_t lanes, double speed) {
  return StrCat("x", lanes, speed > 0 ? StrCat(" at ", speed, " GT/s") : "");
}

void CheckLink(const PciDevice& device, Findings& findings) {
  const std::string subject = StrCat(device.name, " ", device.address);
  if (device.width == kUnknown || device.max_width == kUnknown)
    return findings.NotApplicable(
        {.check = "link",
         .subject = subject,
         .text = "The PCIe width is not shown here.",
         .evidence = StrCat("/sys/bus/pci/devices/", device.address, "/current_link_width")});
  const int64_t slot = device.slot_width == kUnknown ? device.max_width : device.slot_width;
  const int64_t possible = std::min(device.max_width, slot);
  double speed = device.max_speed;
  if (device.slot_speed > 0) speed = std::min(speed, device.slot_speed);
  Finding finding{.check = "link",
                  .subject = subject,
                  .text = StrCat("PCIe ", LanesText(device.width, device.speed), "."),
                  .evidence = StrCat("trained ", LanesText(device.width, device.speed), "; device ",
                                     LanesText(device.max_width, device.max_speed), "; slot ",
                                     LanesText(slot, device.slot_speed))};
  const std::string remedy =
      StrCat("lspci -vvs ", device.address, " | grep Lnk  # then reseat the card, or look at riser and slot");
  // A GPU that is idle lowers its speed to save power; its width stays.
  const bool slow = device.kind == "NIC" && device.speed > 0 && device.speed < speed;
  if (device.width < possible || slow) {
    finding.text = StrCat("PCIe has trained at ", LanesText(device.width, device.speed), ", and ",
                          LanesText(possible, speed), " is possible.");
    finding.remedy = remedy;
    findings.Warn(finding);
  } else if (slot < device.max_width) {
    finding.text = StrCat("The slot has x", slot, ", and the card could use x", device.max_width, ".");
    finding.remedy = "move the card to a wider slot";
    findings.Warn(finding);
  } else {
    findings.Ok(finding);
  }
}

void CheckIsolation(const Facts& facts, Findings& findings) {
  if (!HasKind(facts, "GPU") || !HasKind(facts, "NIC"))
    return findings.NotApplicable(
        {.check = "acs",
         .text = "ACS and IOMMU matter between GPUs and NICs, and one of the two is missing."});
  bool readable = true;
  bool translated = false;
  std::vector<std::string> bridges;
  std::string types;
  for (const PciDevice& device : facts.pcie.devices) {
    readable = readable && device.acs_readable;
    translated = translated || device.iommu.starts_with("DMA");
    if (!device.iommu.empty() && types.find(device.iommu) == std::string::npos)
      types += StrCat(types.empty() ? "" : ", ", device.iommu);
    if (device.nearness != "same switch") continue;  // Elsewhere data passes the root port anyway.
    for (const std::string& bridge : device.acs_bridges) {
      if (std::ranges::find(bridges, bridge) == bridges.end()) bridges.push_back(bridge);
    }
  }
  if (!bridges.empty()) {
    findings.Warn({.check = "acs",
                   .subject = bridges.front(),
                   .text = StrCat("ACS sends traffic between GPU and NIC up to the processor at ",
                                  bridges.size(), " PCIe ports."),
                   .evidence = StrCat("ACS control of ", Join(bridges, ", ")),
                   .remedy = StrCat("setpci -s ", bridges.front(),
                                    " ECAP_ACS+6.w=0000  # for each port, at each boot; or in the BIOS")});
  } else if (!readable) {
    findings.NotApplicable({.check = "acs",
                            .text = "ACS needs root to be read.",
                            .evidence = "/sys/bus/pci/devices/*/config",
                            .remedy = "sudo weightcast doctor"});
  } else {
    findings.Ok({.check = "acs",
                 .text = "No ACS redirection between GPU and NIC.",
                 .evidence = "/sys/bus/pci/devices/*/config"});
  }
  if (translated) {
    findings.Warn(
        {.check = "iommu",
         .text = "The IOMMU translates the addresses of GPUs and NICs. Transfers between them are slower, or "
                 "fail.",
         .evidence = StrCat("iommu_group/type: ", types),
         .remedy = "add iommu=pt to the kernel's command line (GRUB_CMDLINE_LINUX), update-grub, reboot"});
  } else {
    findings.Ok({.check = "iommu",
                 .text = types.empty() ? "The IOMMU is off." : "The IOMMU passes addresses through.",
                 .evidence = StrCat("iommu_group/type: ", types.empty() ? "none" : types)});
  }
}

void CheckGpuDriver(const Facts& facts, const PciDevice& gpu, Findings& findings) {
  const std::string subject = StrCat(gpu.name, " ", gpu.address);
  const std::string evidence =
      StrCat("/sys/bus/pci/devices/", gpu.address, "/driver: ", gpu.driver.empty() ? "none" : gpu.driver);
  if (gpu.driver == "nvidia" || gpu.driver == "amdgpu" || gpu.driver == "i915" || gpu.driver == "xe")
    return findings.Ok({.check = "driver",
                        .subject = subject,
                        .text = StrCat("Driver ", gpu.driver, "."),
                        .evidence = evidence});
  if (gpu.driver.empty() && !facts.host.container.empty())
    return findings.NotApplicable({.check = "driver",
                                   .subject = subject,
                                   .text = "The container does not show the driver of this GPU.",
                                   .evidence = evidence});
  findings.Warn({.check = "driver",
                 .subject = subject,
                 .text = gpu.driver.empty()
                             ? "The GPU has no driver."
                             : StrCat("The GPU has the driver ", gpu.driver, ", which is not for computing."),
                 .evidence = evidence,
                 .remedy = gpu.name.starts_with("NVIDIA")
                               ? "modprobe nvidia  # if there is none: apt-get install nvidia-open"
                               : "modprobe amdgpu"});
}

void CheckPeers(const Facts& facts, Findings& findings) {
  const auto& gpus = facts.cuda.gpus;
  if (gpus.size() < 2) return;
  std::vector<std::string> apart;
  size_t links = 0;
  for (const CudaGpu& gpu : gpus) {
    links += gpu.nvlinks.size();
    if (gpu.reaches.size() + 1 < gpus.size()) apart.push_back(gpu.address);
  }
  const bool nvlink = links > 0;
  if (!apart.empty()) {
    findings.Warn({.check = "peer_access",
                   .subject = apart.front(),
                   .text = StrCat(apart.size(), " of ", gpus.size(),
                                  " GPUs cannot copy the memory of each other directly."),
                   .evidence = StrCat("cuDeviceGetP2PAttribute: ", Join(apart, ", ")),
                   .remedy = "nvidia-smi topo -p2p r; nvidia-smi topo -m"});
  } else {
    findings.Ok({.check = "peer_access",
                 .text = StrCat("All ", gpus.size(), " GPUs reach each other",
                                nvlink ? " over NVLink." : " over PCIe."),
                 .evidence = "cuDeviceGetP2PAttribute"});
  }
  if (!nvlink && facts.gpu.nv_switches > 0)
    findings.Warn(
        {.check = "nvlink",
         .text = StrCat("The machine has ", facts.gpu.nv_switches, " NVSwitches, and no GPU uses NVLink."),
         .evidence = "PCI class 0x0680; native atomics between GPUs",
         .remedy = "systemctl restart nvidia-fabricmanager; nvidia-smi nvlink --status"});
}

void CheckCuda(const Facts& facts, Findings& findings) {
  const auto nvidia = std::ranges::count_if(
      facts.pcie.devices, [](const PciDevice& one) { return one.kind == "GPU" && one.driver == "nvidia"; });
  const bool expected = nvidia > 0 || !facts.gpu.kernel_driver.empty();
  if (!facts.gpu.closed_devices.empty())
    findings.Fail(
        {.check = "device",
         .subject = StrCat("/dev/", facts.gpu.closed_devices.front()),
         .text = StrCat("This process may not open ", facts.gpu.closed_devices.size(), " GPU device files."),
         .evidence = Join(facts.gpu.closed_devices, ", "),
         .remedy = "usermod -aG video,render $USER  # a container: docker run --gpus all …"});
  if (facts.missed.contains("cuda")) return;
  if (!facts.cuda.gpus.empty()) {
    findings.Ok({.check = "cuda",
                 .text = StrCat("CUDA ", facts.cuda.version, " shows ", facts.cuda.gpus.size(),
                                " GPUs: ", facts.cuda.gpus.front().name, "."),
                 .evidence = facts.gpu.kernel_driver});
  } else if (Setting(facts, "gpu") == "off") {
    findings.NotApplicable({.check = "cuda", .text = "The setting gpu is off, so the driver was not asked."});
  } else if (expected) {
    findings.Fail({.check = "cuda",
                   .text = "The GPU driver is here, and CUDA shows this process no GPU.",
                   .evidence = facts.cuda.error,
                   .remedy = Variable(facts, "CUDA_VISIBLE_DEVICES").empty()
                                 ? "nvidia-smi; dmesg | grep -i -e nvrm -e xid | tail"
                                 : "unset CUDA_VISIBLE_DEVICES"});
  }
  CheckPeers(facts, findings);
}

}  // namespace

void CheckModules(const Facts& facts, Findings& findings) {
  if (!facts.modules.readable || facts.missed.contains("pcie"))
    return findings.NotApplicable(
        {.check = "modules", .text = "The kernel's modules cannot be read.", .evidence = "/sys/module"});
  const bool missing = CheckHalves(facts, findings);
  CheckGpuMemory(facts, findings);
  if (facts.rdma.devices.empty()) {
    if (!missing)
      findings.NotApplicable({.check = "modules",
                              .text = "No NIC that can do RDMA, so no module is needed.",
                              .evidence = "/sys/bus/pci/devices"});
  } else if (!IsLoaded(facts, "ib_uverbs")) {
    findings.Fail({.check = "uverbs_module",
                   .text = "The module ib_uverbs is not loaded, so no process can use RDMA.",
                   .evidence = "/sys/module/ib_uverbs is missing",
                   .remedy = "modprobe ib_uverbs"});
  } else {
    findings.Ok({.check = "modules",
                 .text = StrCat("Loaded: ", Join(facts.modules.loaded, ", "), "."),
                 .evidence = "/sys/module"});
  }
}

void CheckPcie(const Facts& facts, Findings& findings) {
  for (const PciDevice& device : facts.pcie.devices) CheckLink(device, findings);
  CheckIsolation(facts, findings);
}

void CheckNuma(const Facts& facts, Findings& findings) {
  for (const PciDevice& gpu : facts.pcie.devices) {
    if (gpu.kind != "GPU" || gpu.nearest_nics.empty()) continue;
    const std::string subject = StrCat(gpu.name, " ", gpu.address);
    Finding finding{.check = "nearest_nic",
                    .subject = subject,
                    .text = StrCat("Nearest NICs: ", Join(gpu.nearest_nics, ", "), " (", gpu.nearness, ")."),
                    .evidence = StrCat("NUMA node of the GPU: ", gpu.node, "; nodes: ", facts.pcie.nodes)};
    if (gpu.nearness == "other NUMA node") {
      finding.text =
          StrCat("The nearest NIC, ", gpu.nearest_nics.front(),
                 ", is at another NUMA node than the GPU. All its traffic passes between the processors.");
      finding.remedy =
          "lstopo  # then move the card, or use the GPUs of the NIC's node: CUDA_VISIBLE_DEVICES";
      findings.Warn(finding);
    } else if (gpu.nearness == "unknown") {
      finding.text = "The firmware does not say at which NUMA node the GPU or its NIC is.";
      finding.remedy = StrCat("cat /sys/bus/pci/devices/", gpu.address, "/numa_node  # then update the BIOS");
      findings.Warn(finding);
    } else {
      findings.Ok(finding);
    }
  }
  if (findings.empty())
    findings.NotApplicable(
        {.check = "nearest_nic",
         .text = StrCat("No GPU with an RDMA NIC; ", std::max<int64_t>(facts.pcie.nodes, 1), " NUMA nodes."),
         .evidence = "/sys/devices/system/node"});
}

void CheckCpu(const Facts& facts, Findings& findings) {
  if (facts.cpu.governors.empty())
    return findings.NotApplicable({.check = "governor",
                                   .text = "The kernel does not control the processors' clock here.",
                                   .evidence = "/sys/devices/system/cpu/cpu0/cpufreq"});
  std::string evidence = StrCat("scaling_driver ", facts.cpu.driver, "; CPUs by governor: ");
  for (const auto& [governor, count] : facts.cpu.governors) evidence += StrCat(governor, " ", count, " ");
  evidence.pop_back();
  if (const auto saving = facts.cpu.governors.find("powersave"); saving != facts.cpu.governors.end()) {
    findings.Warn(
        {.check = "governor",
         .text =
             StrCat(saving->second,
                    " CPUs have the governor powersave. Latency grows, and copies of host memory slow down."),
         .evidence = evidence,
         .remedy = "cpupower frequency-set -g performance"});
  } else {
    findings.Ok({.check = "governor",
                 .text = StrCat("Governor ", facts.cpu.governors.begin()->first, "."),
                 .evidence = evidence});
  }
}

void CheckGpu(const Facts& facts, Findings& findings) {
  for (const PciDevice& device : facts.pcie.devices) {
    if (device.kind == "GPU") CheckGpuDriver(facts, device, findings);
  }
  CheckCuda(facts, findings);
  if (findings.empty())
    findings.NotApplicable({.check = "driver", .text = "No GPU.", .evidence = "/sys/bus/pci/devices"});
}

}  // namespace weightcast::doctor
