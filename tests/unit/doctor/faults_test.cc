#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>

#include "doctor/checks.h"
#include "doctor/report.h"
#include "unit/doctor/machine.h"

namespace weightcast::doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// "rdma.gid" of each WARN and FAIL, with its text.
std::vector<std::string> Troubles(const std::vector<Finding>& findings) {
  std::vector<std::string> found;
  for (const Finding& one : findings) {
    if (one.level >= Level::kWarn) found.push_back(StrCat(one.group, ".", one.check, ": ", one.text));
  }
  return found;
}

TEST(Faults, NoneOfAHealthyMachine) {
  Machine machine;
  const Facts facts = machine.Look();
  const auto findings = CheckAll(facts);
  EXPECT_THAT(Troubles(findings), IsEmpty());
  // And it was looked at, not skipped.
  for (const char* name :
       {"rdma.gid", "rdma.mtu", "rdma.state", "pcie.link", "pcie.acs", "numa.nearest_nic", "gpu.peer_access",
        "cpu.governor", "limits.memlock", "qos.congestion", "modules.gpu_memory", "host.name"}) {
    EXPECT_TRUE(std::ranges::any_of(findings, [&](const Finding& one) {
      return one.level == Level::kOk && StrCat(one.group, ".", one.check) == name;
    })) << name;
  }
}

TEST(Faults, NoneOfAMachineWithoutRdmaAndGpu) {
  Sources sources;
  sources.root = "/nothing/here";
  sources.shm_bytes = kNoLimit;
  Facts facts;
  facts.host = GatherHost(sources);
  facts.limits = GatherLimits(sources);
  facts.rdma = GatherRdma(sources);
  facts.pcie = GatherPcie(sources);
  EXPECT_THAT(Troubles(CheckAll(facts)), IsEmpty());
}

struct Fault {
  std::string name;
  std::string check;  ///< "rdma.gid"
  Level level;
  std::string remedy;  ///< Part of the command.
  std::function<void(Machine&)> plant;
  std::function<void(Facts&)> change = [](Facts&) {};  ///< Of what the gatherers cannot be made to read.
};
std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.name; }

class Planted : public ::testing::TestWithParam<Fault> {};

TEST_P(Planted, IsFoundAndNamedWithItsRemedy) {
  const Fault& fault = GetParam();
  Machine machine;
  fault.plant(machine);
  Facts facts = machine.Look();
  fault.change(facts);
  bool found = false;
  for (const Finding& one : CheckAll(facts)) {
    if (one.level < Level::kWarn) continue;
    const std::string name = StrCat(one.group, ".", one.check);
    // Nothing else is wrong.
    EXPECT_EQ(name, fault.check) << one.text;
    EXPECT_EQ(one.level, fault.level) << one.text;
    EXPECT_THAT(one.remedy, HasSubstr(fault.remedy)) << one.text;
    EXPECT_FALSE(one.evidence.empty()) << one.text;
    found = true;
  }
  EXPECT_TRUE(found);
}

const auto kNothing = [](Machine&) {};
constexpr const char* kLocal = "fe80:0000:0000:0000:0a00:00ff:fe00:0000";

std::vector<Fault> RdmaFaults() {
  return {
      {"NoRoceV2", "rdma.gid", Level::kFail, "ip address add",
       [](Machine& m) {
         m.SetGid(0, 1, kLocal, "IB/RoCE v1");
         m.SetGid(0, 3, kLocal, "IB/RoCE v1");
       }},
      {"LinkLocalOnly", "rdma.gid", Level::kWarn, "dev eth0",
       [](Machine& m) { m.Remove(StrCat("sys/", Machine::Port(0), "/gids/3")); }},
      {"NoSubnetManager", "rdma.subnet_manager", Level::kFail, "opensm",
       [](Machine& m) {
         m.sys.Write(StrCat(Machine::Port(2), "/state"), "2: INIT");
         m.sys.Write(StrCat(Machine::Port(2), "/sm_lid"), "0x0");
       }},
      {"PortDown", "rdma.state", Level::kWarn, "ethtool eth0",
       [](Machine& m) { m.PortDown(0, "2: Polling"); }},
      {"PortDisabled", "rdma.state", Level::kWarn, "ip link set eth1 up",
       [](Machine& m) { m.PortDown(1, "3: Disabled"); }},
      {"AllPortsDown", "rdma.state", Level::kFail, "WEIGHTCAST_NICS",
       [](Machine& m) {
         for (int nic = 0; nic < 3; ++nic) m.PortDown(nic, "2: Polling");
       }},
      {"SmallMtu", "rdma.mtu", Level::kWarn, "ip link set eth0 mtu 9000",
       [](Machine& m) { m.verbs.devices[0].ports[0].mtu = IBV_MTU_1024; }},
      {"SmallMtuOfInfiniBand", "rdma.mtu", Level::kWarn, "partitions.conf",
       [](Machine& m) { m.verbs.devices[2].ports[0].mtu = IBV_MTU_2048; }},
      {"SmallMtuOfTheInterface", "rdma.mtu", Level::kWarn, "ip link set eth1 mtu 9000",
       [](Machine& m) { m.sys.Write("class/net/eth1/mtu", "1500"); },
       [](Facts& f) { f.verbs.ports.clear(); }},
      {"OneLane", "rdma.width", Level::kWarn, "mlxlink -d mlx5_2",
       [](Machine& m) { m.sys.Write(StrCat(Machine::Port(2), "/rate"), "100 Gb/sec (1X NDR)"); }},
      {"SlowerThanItsSibling", "rdma.rate", Level::kWarn, "mlxlink -d mlx5_1",
       [](Machine& m) { m.sys.Write(StrCat(Machine::Port(1), "/rate"), "100 Gb/sec (4X EDR)"); }},
      {"OtherFirmware", "rdma.firmware", Level::kWarn, "mlxfwmanager",
       [](Machine& m) { m.sys.Write("class/infiniband/mlx5_1/fw_ver", "28.39.1002"); }},
      {"NoDeviceFile", "rdma.device", Level::kFail, "/dev/infiniband/uverbs0",
       [](Machine& m) { m.Remove("dev/infiniband/uverbs0"); }},
      {"NoDeviceFileInAContainer", "rdma.device", Level::kFail, "docker run --device /dev/infiniband",
       [](Machine& m) {
         m.Remove("dev/infiniband/uverbs0");
         m.rest.Write(".dockerenv", "");
       }},
      {"NotOpened", "rdma.device", Level::kFail, "ibv_devinfo -d mlx5_1", kNothing,
       [](Facts& f) { f.verbs.not_opened["mlx5_1"] = "cannot be opened: Input/output error (5)"; }},
      {"NoProvider", "rdma.device", Level::kFail, "ibverbs-providers",
       [](Machine& m) { m.verbs.devices.pop_back(); }},
      {"NoLibrary", "rdma.library", Level::kFail, "libibverbs1", kNothing,
       [](Facts& f) { f.verbs.error = "libibverbs.so.1: no such file"; }},
      {"GidIndexOfRoceV1", "rdma.gid_index", Level::kFail, "=3",
       [](Machine& m) { m.sources.environment["NCCL_IB_GID_INDEX"] = "2"; }},
      {"GidIndexOfNothing", "rdma.gid_index", Level::kFail, "export WEIGHTCAST_GID_INDEX=3",
       [](Machine& m) { m.sources.settings.gid_index = "9"; }},
      {"NoUverbs", "modules.uverbs_module", Level::kFail, "modprobe ib_uverbs",
       [](Machine& m) { m.Remove("sys/module/ib_uverbs"); }},
      {"NoMlx5Ib", "modules.rdma_module", Level::kWarn, "modprobe mlx5_ib",
       [](Machine& m) {
         m.Remove("sys/module/mlx5_ib");
         m.Remove("sys/bus/pci/devices/0000:aa:00.0/infiniband");
         m.Remove("sys/class/infiniband/mlx5_2");
       }},
      {"NoDeviceForTheTransport", "rdma.device", Level::kFail, "modprobe mlx5_ib",
       [](Machine& m) {
         m.NoRdma();
         m.sources.settings.transport = "verbs,tcp";
       }},
      {"NoWayToGpuMemory", "modules.gpu_memory", Level::kWarn, "modprobe nvidia_peermem",
       [](Machine& m) {
         m.sources.kernel = "5.4.0-200-generic";
         m.Remove("sys/module/nvidia_peermem");
       }},
      {"NeitherPfcNorEcn", "qos.congestion", Level::kWarn, "mlnx_qos -i eth0",
       [](Machine& m) { m.sys.Write("class/net/eth0/qos/pfc", "0,0,0,0,0,0,0,0"); }},
      {"PfcOfAnotherPriority", "qos.congestion", Level::kWarn, "WEIGHTCAST_TRAFFIC_CLASS=104",
       [](Machine& m) { m.sys.Write("class/net/eth0/qos/pfc", "0,0,0,1,0,0,0,0"); }},
      {"DscpIsNotTrusted", "qos.congestion", Level::kWarn, "--trust dscp",
       [](Machine& m) { m.sys.Write("class/net/eth1/qos/trust", "pcp"); }},
  };
}

std::vector<Fault> MachineFaults() {
  return {
      {"TrainedAtX4", "pcie.link", Level::kWarn, "lspci -vvs 0000:15:50.0",
       [](Machine& m) { m.Pci("0000:15:50.0", "current_link_width", "4"); }},
      {"GpuTrainedAtX8", "pcie.link", Level::kWarn, "lspci -vvs 0000:97:40.0",
       [](Machine& m) { m.Pci("0000:97:40.0", "current_link_width", "8"); }},
      {"TrainedAtGen3", "pcie.link", Level::kWarn, "lspci -vvs 0000:aa:00.0",
       [](Machine& m) { m.Pci("0000:aa:00.0", "current_link_speed", "8.0 GT/s PCIe"); }},
      {"NarrowSlot", "pcie.link", Level::kWarn, "wider slot",
       [](Machine& m) {
         m.Pci("0000:a9:01.0", "max_link_width", "8");
         m.Pci("0000:aa:00.0", "current_link_width", "8");
       }},
      {"AcsRedirects", "pcie.acs", Level::kWarn, "setpci -s 0000:15:01.0",
       [](Machine& m) { m.Acs("0000:15:01.0", 0x1c); }},
      {"IommuTranslates", "pcie.iommu", Level::kWarn, "iommu=pt",
       [](Machine& m) { m.sys.Write("kernel/iommu_groups/0000:15:50.0/type", "DMA-FQ"); }},
      {"NicAtAnotherNode", "numa.nearest_nic", Level::kWarn, "lstopo",
       [](Machine& m) {
         for (const char* nic : {"mlx5_0", "mlx5_1", "mlx5_2"})
           m.Remove(StrCat("sys/class/infiniband/", nic));
         m.verbs.devices = {m.verbs.devices[1]};
         m.Remove("sys/bus/pci/devices/0000:97:40.0");  // The other GPU.
         m.cuda.gpus.pop_back();
         m.cuda.gpus[0].reaches = m.cuda.gpus[0].linked = {};
         m.sys.Link("class/infiniband/mlx5_1",
                    "devices/pci0000:97/0000:97:01.0/0000:97:50.0/infiniband/mlx5_1");
       }},
      {"PowerSave", "cpu.governor", Level::kWarn, "cpupower frequency-set -g performance",
       [](Machine& m) { m.sys.Write("devices/system/cpu/cpu2/cpufreq/scaling_governor", "powersave"); }},
      {"GpuWithoutDriver", "gpu.driver", Level::kWarn, "modprobe nvidia",
       [](Machine& m) { m.Remove("sys/bus/pci/devices/0000:97:40.0/driver"); }},
      {"CudaShowsNothing", "gpu.cuda", Level::kFail, "nvidia-smi",
       [](Machine& m) {
         m.cuda.gpus.clear();
         m.cuda.status = {Code::kUnavailable, "cuInit: CUDA_ERROR_SYSTEM_NOT_READY"};
       }},
      {"CudaIsHidden", "gpu.cuda", Level::kFail, "unset CUDA_VISIBLE_DEVICES",
       [](Machine& m) {
         m.cuda = {.status = {Code::kUnavailable, "no device"}, .driver = "", .gpus = {}};
         m.sources.environment["CUDA_VISIBLE_DEVICES"] = "7";
       }},
      {"NoPeerAccess", "gpu.peer_access", Level::kWarn, "nvidia-smi topo",
       [](Machine& m) { m.cuda.gpus[1].reaches = m.cuda.gpus[1].linked = {}; }},
      {"NoNvlink", "gpu.nvlink", Level::kWarn, "nvidia-fabricmanager",
       [](Machine& m) {
         for (auto& gpu : m.cuda.gpus) gpu.linked.clear();
         m.sys.Pci("pci0000:00/0000:00:1f.0", 0, "0x068000", "0x10de", "0x22a3");
       }},
      {"GpuDeviceFile", "gpu.device", Level::kFail, "docker run --gpus", kNothing,
       [](Facts& f) { f.gpu.closed_devices = {"nvidia0"}; }},
  };
}

std::vector<Fault> HostFaults() {
  const auto variable = [](const char* name, const char* value) {
    return [=](Machine& m) { m.sources.environment[name] = value; };
  };
  const auto clock = [](double ahead) {
    return [=](Facts& f) { f.clock = {.reference = "head:80", .ahead_seconds = ahead, .error = ""}; };
  };
  return {
      {"LowMemlock", "limits.memlock", Level::kFail, "ulimit -l unlimited",
       [](Machine& m) { m.sources.memlock_bytes = 64 << 10; }},
      {"SomeMemlock", "limits.memlock", Level::kWarn, "LimitMEMLOCK",
       [](Machine& m) { m.sources.memlock_bytes = int64_t{8} << 30; }},
      {"LowMemlockInAContainer", "limits.memlock", Level::kFail, "IPC_LOCK",
       [](Machine& m) {
         m.sources.memlock_bytes = 64 << 10;
         m.sources.environment["KUBERNETES_SERVICE_HOST"] = "10.96.0.1";
       }},
      {"FewDescriptors", "limits.descriptors", Level::kFail, "ulimit -n",
       [](Machine& m) { m.sources.descriptors = 256; }},
      {"SomeDescriptors", "limits.descriptors", Level::kWarn, "LimitNOFILE",
       [](Machine& m) { m.sources.descriptors = 1024; }},
      {"LittleShm", "limits.shm", Level::kWarn, "/dev/shm",
       [](Machine& m) { m.sources.shm_bytes = 64 << 20; }},
      {"FullGroup", "limits.cgroup_memory", Level::kWarn, "MemoryMax",
       [](Machine& m) { m.sys.Write("fs/cgroup/user.slice/memory.max", "1050000"); }},
      {"FewProcesses", "limits.cgroup_processes", Level::kWarn, "TasksMax",
       [](Machine& m) { m.sys.Write("fs/cgroup/pids.max", "100"); }},
      {"YamaForbids", "limits.ptrace", Level::kWarn, "WEIGHTCAST_PTRACER=peer",
       [](Machine& m) { m.rest.Write("proc/sys/kernel/yama/ptrace_scope", "1"); }},
      {"NameIsLoopback", "host.name", Level::kWarn, "GLOO_SOCKET_IFNAME=eth0", kNothing,
       [](Facts& f) { f.names.addresses = {"127.0.1.1"}; }},
      {"NameDoesNotResolve", "host.name", Level::kWarn, "/etc/hosts", kNothing,
       [](Facts& f) { f.names = {.addresses = {}, .error = "Name or service not known"}; }},
      {"NcclNamesNoInterface", "host.named_interface", Level::kFail, "export NCCL_SOCKET_IFNAME=eth0",
       variable("NCCL_SOCKET_IFNAME", "bond7")},
      {"GlooTakesNoPrefix", "host.named_interface", Level::kFail, "export GLOO_SOCKET_IFNAME=eth0",
       variable("GLOO_SOCKET_IFNAME", "eth")},
      {"NamedInterfaceIsDown", "host.named_interface", Level::kFail, "export NCCL_SOCKET_IFNAME=eth0",
       [](Machine& m) {
         m.sources.environment["NCCL_SOCKET_IFNAME"] = "=ib2";
         m.sys.Write("class/net/ib2/operstate", "down");
       }},
      {"SettingNamesNoInterface", "host.named_interface", Level::kFail, "WEIGHTCAST_INTERFACE=eth0",
       [](Machine& m) { m.sources.settings.interface = "eth9"; }},
      {"NcclNamesNoDevice", "host.named_device", Level::kFail, "export NCCL_IB_HCA=mlx5_0",
       variable("NCCL_IB_HCA", "=mlx5_9")},
      {"BindIsNoAddress", "host.bind", Level::kFail, "ip -brief address",
       [](Machine& m) { m.sources.settings.bind = "10.9.9.9"; }},
      {"NoRoute", "host.route", Level::kFail, "ip route", kNothing,
       [](Facts& f) {
         f.route = {
             .target = "10.99.0.1:29750", .source = "", .interface = "", .error = "Network is unreachable"};
       }},
      {"ClockAnHourOff", "host.clock", Level::kFail, "timedatectl", kNothing, clock(-3600)},
      {"ClockHalfAMinuteOff", "host.clock", Level::kWarn, "timedatectl", kNothing, clock(30)},
      {"ProbeHangs", "rdma.probe", Level::kWarn, "dmesg", kNothing,
       [](Facts& f) { f.missed["verbs"] = "gave no answer within 5 s"; }},
  };
}

const auto kNameOf = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Rdma, Planted, ::testing::ValuesIn(RdmaFaults()), kNameOf);
INSTANTIATE_TEST_SUITE_P(Machine, Planted, ::testing::ValuesIn(MachineFaults()), kNameOf);
INSTANTIATE_TEST_SUITE_P(Host, Planted, ::testing::ValuesIn(HostFaults()), kNameOf);

// What looks like a fault and is none.
TEST(Faults, NotOfAPortThatIsLeftOut) {
  Machine machine;
  machine.PortDown(0, "2: Polling");
  machine.sources.settings.nics = "^mlx5_0";
  EXPECT_THAT(Troubles(CheckAll(machine.Look())), IsEmpty());
}

TEST(Faults, NotOfRdmaThatIsLeftOut) {
  Machine machine;
  machine.PortDown(0, "2: Polling");
  machine.sources.memlock_bytes = 64 << 10;
  machine.sources.settings.transport = "shm,tcp";
  EXPECT_THAT(Troubles(CheckAll(machine.Look())), IsEmpty());
}

TEST(Faults, NotOfMemlockWithTheCapability) {
  Machine machine;
  machine.sources.memlock_bytes = 64 << 10;
  machine.rest.Write("proc/self/status", "CapEff:\t0000000000004000");
  EXPECT_THAT(Troubles(CheckAll(machine.Look())), IsEmpty());
}

TEST(Faults, NotOfAGpuThatSleeps) {
  Machine machine;
  machine.Pci("0000:15:40.0", "current_link_speed", "2.5 GT/s PCIe");
  EXPECT_THAT(Troubles(CheckAll(machine.Look())), IsEmpty());
}

TEST(Faults, NotOfConfigurationSpaceThatNeedsRoot) {
  Machine machine;
  machine.Pci("0000:15:01.0", "config", std::string(63, 'x'));
  const auto findings = CheckAll(machine.Look());
  EXPECT_THAT(Troubles(findings), IsEmpty());
  const auto acs = std::ranges::find(findings, "acs", &Finding::check);
  ASSERT_NE(acs, findings.end());
  EXPECT_EQ(acs->level, Level::kNotApplicable);
}

}  // namespace
}  // namespace weightcast::doctor
