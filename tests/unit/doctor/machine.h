#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "doctor/gather.h"
#include "fake_ibverbs/fabric.h"
#include "unit/topology/tree.h"

namespace weightcast::doctor {

/// The recorded tree of a healthy machine: two NUMA nodes, and at each a PCIe switch with a GPU and a RoCE
/// NIC; at the second an InfiniBand NIC, too. A test plants a fault by writing over it.
class Machine {
 public:
  Machine() {
    std::filesystem::create_directory_symlink(sys.root(), rest.root() / "sys");
    sys.Nodes(2);
    for (int node = 0; node < 2; ++node) {
      const std::string bus = node == 0 ? "15" : "97";
      const std::string up = StrCat("pci0000:", bus, "/0000:", bus, ":01.0");
      AddGpu(StrCat(up, "/0000:", bus, ":40.0"), node);
      AddNic(StrCat("mlx5_", node), StrCat(up, "/0000:", bus, ":50.0"), node, "Ethernet");
      AddBridge(StrCat(up));
    }
    AddNic("mlx5_2", "pci0000:a9/0000:a9:01.0/0000:aa:00.0", 1, "InfiniBand");
    AddBridge("pci0000:a9/0000:a9:01.0");
    AddHost();
    for (const char* name : {"ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib", "nvidia", "nvidia_peermem"})
      sys.Folder(StrCat("module/", name));
    for (int cpu = 0; cpu < 4; ++cpu) {
      const std::string folder = StrCat("devices/system/cpu/cpu", cpu, "/cpufreq");
      sys.Write(StrCat(folder, "/scaling_governor"), "performance");
      sys.Write(StrCat(folder, "/scaling_driver"), "intel_pstate");
    }
  }

  /// What the gatherers find: those that ask a resolver or the network get what a healthy one says.
  Facts Look() {
    sources.root = rest.root();
    Facts facts;
    facts.environment = GatherEnvironment(sources);
    facts.settings = GatherSettings(sources);
    facts.host = GatherHost(sources);
    facts.names = {.addresses = {"10.0.0.5"}, .error = ""};
    facts.limits = GatherLimits(sources);
    facts.modules = GatherModules(sources);
    facts.rdma = GatherRdma(sources);
    sources.verbs = [this] { return Result<std::shared_ptr<drivers::Ibverbs>>(fabric.NewHost(verbs)); };
    facts.verbs = GatherVerbs(sources);
    facts.qos = GatherQos(sources);
    facts.pcie = GatherPcie(sources);
    facts.cpu = GatherCpu(sources);
    facts.gpu = GatherGpu(sources);
    sources.cuda = [this](const Settings&) { return cuda; };
    facts.cuda = GatherCuda(sources);
    return facts;
  }

  static std::string Port(int nic) { return StrCat("class/infiniband/mlx5_", nic, "/ports/1"); }
  void Remove(const std::string& path) { std::filesystem::remove_all(rest.root() / path); }
  void SetGid(int nic, int index, const std::string& gid, const std::string& type) {
    sys.Write(StrCat(Port(nic), "/gids/", index), gid);
    sys.Write(StrCat(Port(nic), "/gid_attrs/types/", index), type);
  }
  void PortDown(int nic, const std::string& physical) {
    sys.Write(StrCat(Port(nic), "/state"), "1: DOWN");
    sys.Write(StrCat(Port(nic), "/phys_state"), physical);
  }
  /// And no NIC that could do it.
  void NoRdma() {
    for (int nic = 0; nic < 3; ++nic) Remove(StrCat("sys/class/infiniband/mlx5_", nic));
    for (const char* nic : {"0000:15:50.0", "0000:97:50.0", "0000:aa:00.0"})
      Remove(StrCat("sys/bus/pci/devices/", nic));
    verbs.devices.clear();
  }
  /// Of the PCI device `address`.
  void Pci(const std::string& address, const std::string& file, const std::string& text) {
    sys.Write(StrCat("bus/pci/devices/", address, "/", file), text);
  }
  /// Configuration space whose only extended capability is ACS, with this control register.
  void Acs(const std::string& address, char control) {
    std::string bytes(4096, '\0');
    bytes[0x100] = 0x0d;
    bytes[0x106] = control;
    std::ofstream(sys.root() / StrCat("bus/pci/devices/", address, "/config"), std::ios::binary) << bytes;
  }

  topology::Tree sys;
  topology::Tree rest;  ///< /proc, /dev, and a link to `sys`.
  Sources sources;
  fake::Fabric fabric;
  fake::HostConfig verbs{.devices = {}};
  device::Inventory cuda{.status = Status::Ok(), .driver = "13.0", .gpus = {}};

 private:
  void AddLink(const std::string& address, const std::string& driver) {
    Pci(address, "current_link_width", "16");
    Pci(address, "max_link_width", "16");
    Pci(address, "current_link_speed", "32.0 GT/s PCIe");
    Pci(address, "max_link_speed", "32.0 GT/s PCIe");
    sys.Write(StrCat("kernel/iommu_groups/", address, "/type"), "identity");
    sys.Link(StrCat("bus/pci/devices/", address, "/iommu_group"), StrCat("kernel/iommu_groups/", address));
    sys.Folder(StrCat("bus/pci/drivers/", driver));
    sys.Link(StrCat("bus/pci/devices/", address, "/driver"), StrCat("bus/pci/drivers/", driver));
  }
  void AddBridge(const std::string& path) {
    const std::string address = path.substr(path.rfind('/') + 1);
    sys.Pci(path, -1, "0x060400", "0x8086", "0x352a");
    AddLink(address, "pcieport");
    Acs(address, 0);
  }
  void AddGpu(const std::string& path, int node) {
    const std::string address = path.substr(path.rfind('/') + 1);
    sys.Gpu(path, node);
    AddLink(address, "nvidia");
    device::ListedGpu gpu{.gpu = {.ordinal = node, .handle = 0, .uuid = {}, .name = "NVIDIA H100"},
                          .uuid = "",
                          .pci_address = address,
                          .reaches = {1 - node},
                          .linked = {1 - node}};
    cuda.gpus.push_back(std::move(gpu));
  }
  void AddNic(const std::string& name, const std::string& path, int node, const std::string& layer) {
    const bool ethernet = layer == "Ethernet";
    const int number = name.back() - '0';
    const std::string interface = StrCat(ethernet ? "eth" : "ib", number);
    sys.Nic(name, path, node, interface);
    AddLink(path.substr(path.rfind('/') + 1), "mlx5_core");
    const std::string port = Port(number);
    sys.Write(StrCat(port, "/state"), "4: ACTIVE");
    sys.Write(StrCat(port, "/phys_state"), "5: LinkUp");
    sys.Write(StrCat(port, "/link_layer"), layer);
    sys.Write(StrCat(port, "/lid"), ethernet ? "0x0" : "0x7");
    sys.Write(StrCat(port, "/sm_lid"), ethernet ? "0x0" : "0x1");
    const std::string local = StrCat("fe80:0000:0000:0000:0a00:00ff:fe00:000", number);
    SetGid(number, 0, local, "IB/RoCE v1");
    if (ethernet) {
      SetGid(number, 1, local, "RoCE v2");
      SetGid(number, 2, StrCat("0000:0000:0000:0000:0000:ffff:0a00:000", number), "IB/RoCE v1");
      SetGid(number, 3, StrCat("0000:0000:0000:0000:0000:ffff:0a00:000", number), "RoCE v2");
    }
    SetGid(number, 4, "0000:0000:0000:0000:0000:0000:0000:0000", "");
    sys.Write(StrCat("class/infiniband/", name, "/fw_ver"), "28.43.1014");
    sys.Write(StrCat("class/infiniband/", name, "/board_id"), ethernet ? "MT_0000000838" : "MT_0000000970");
    sys.Write(StrCat("class/infiniband_verbs/uverbs", number, "/ibdev"), name);
    rest.Write(StrCat("dev/infiniband/uverbs", number), "");
    sys.Write(StrCat("class/net/", interface, "/operstate"), "up");
    sys.Write(StrCat("class/net/", interface, "/mtu"), ethernet ? "9000" : "4092");
    if (ethernet) {
      sys.Write(StrCat("class/net/", interface, "/qos/pfc"), "1,0,0,0,0,0,0,0");
      sys.Write(StrCat("class/net/", interface, "/qos/trust"), "dscp");
    }
    sources.addresses[interface] = {StrCat("10.0.0.", 5 + number)};
    fake::DeviceConfig device;
    device.name = name;
    device.ports = {fake::PortConfig{.infiniband = !ethernet}};
    verbs.devices.push_back(std::move(device));
  }
  void AddHost() {
    sources.host_name = "node5";
    sources.kernel = "6.8.0-45-generic";
    sources.descriptors = 1048576;
    sources.memlock_bytes = kNoLimit;
    sources.shm_bytes = int64_t{64} << 30;
    sources.addresses["lo"] = {"127.0.0.1"};
    sys.Write("devices/virtual/net/lo/operstate", "unknown");
    sys.Write("devices/virtual/net/lo/mtu", "65536");
    sys.Link("class/net/lo", "devices/virtual/net/lo");
    rest.Write("proc/net/route", "Iface Destination Gateway\neth0 00000000 0100000A");
    rest.Write("proc/self/status", "Name:\tweightcast\nCapEff:\t0000000000000000\nSeccomp:\t0");
    rest.Write("proc/self/cgroup", "0::/user.slice");
    sys.Write("fs/cgroup/user.slice/memory.max", "max");
    sys.Write("fs/cgroup/user.slice/memory.current", "1000000");
    sys.Write("fs/cgroup/user.slice/pids.max", "100000");
    rest.Write("proc/sys/kernel/yama/ptrace_scope", "0");
    rest.Write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module 580.65.06");
  }
};

}  // namespace weightcast::doctor
