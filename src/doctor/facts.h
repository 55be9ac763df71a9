#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

/// What the gatherers of `weightcast doctor` read, without opinion (docs/doctor.md). Empty text and kUnknown:
/// the machine does not tell.
namespace weightcast::doctor {

inline constexpr int64_t kUnknown = -1;
inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

struct Interface {
  std::string name;
  std::string state;  ///< "up", "down", "unknown" (loopback, tunnels).
  int64_t mtu = kUnknown;
  int64_t mbit_per_second = kUnknown;
  std::vector<std::string> addresses;
};

struct HostFacts {
  std::string name;
  std::string kernel;     ///< "6.8.0-45-generic".
  std::string container;  ///< What shows that this is one: "/.dockerenv". Empty: nothing.
  std::vector<Interface> interfaces;
  std::string default_interface;  ///< Of the IPv4 default route.
};

/// What the resolver says of the host's own name.
struct NameFacts {
  std::vector<std::string> addresses;
  std::string error;
};

/// The way to the controller. No packet is sent but the resolver's.
struct RouteFacts {
  std::string target;     ///< "10.0.0.1:29750"; empty: none was asked for.
  std::string source;     ///< The address of this host that the kernel would use.
  std::string interface;  ///< That has this address.
  std::string error;
};

struct ClockFacts {
  std::string reference;      ///< "head:8080"; empty: none was asked for.
  double ahead_seconds = 0;   ///< Of this host's clock against the reference's.
  std::string error;          ///< Why the reference could not be asked.
  bool synchronised = false;  ///< The kernel says that a time service corrects the clock.
};

struct LimitFacts {
  int64_t descriptors = kUnknown;
  int64_t memlock_bytes = kUnknown;
  int64_t shm_bytes = kUnknown;  ///< Size of /dev/shm.
  std::string cgroup;            ///< The folder whose limits follow.
  int64_t cgroup_memory_bytes = kUnknown;
  int64_t cgroup_memory_used = kUnknown;
  int64_t cgroup_processes = kUnknown;
  std::string ptrace_scope;  ///< Yama's; empty: no Yama.
  std::string capabilities;  ///< CapEff, hexadecimal.
  std::string seccomp;       ///< "0": none, "2": filtered.
};

/// Names of /sys/module that matter here.
struct ModuleFacts {
  bool readable = false;  ///< /sys/module is there.
  std::vector<std::string> loaded;
};

struct GidEntry {
  int64_t index = 0;
  std::string gid;   ///< As sysfs has it, 32 digits in 8 groups.
  std::string type;  ///< "RoCE v2", "IB/RoCE v1".
};

struct RdmaPort {
  std::string name;  ///< "mlx5_0:1", in NCCL's form.
  std::string device;
  int64_t number = 1;
  std::string state;           ///< "ACTIVE", "DOWN", "INIT", "ARMED".
  std::string physical_state;  ///< "LinkUp", "Polling", "Disabled".
  std::string link_layer;      ///< "InfiniBand", "Ethernet".
  std::string rate;            ///< "400 Gb/sec (4X NDR)".
  int64_t lid = kUnknown;
  int64_t sm_lid = kUnknown;
  std::vector<GidEntry> gids;  ///< Without the empty ones.
  std::string interface;
  int64_t interface_mtu = kUnknown;
};

struct RdmaDevice {
  std::string name;
  std::string firmware;
  std::string board;      ///< board_id; equal for equal products.
  std::string verbs;      ///< "uverbs0"; empty: ib_uverbs does not serve it.
  bool writable = false;  ///< This process may open /dev/infiniband/<verbs>.
  bool virtual_function = false;
  int64_t virtual_functions = 0;  ///< That it has made.
};

struct RdmaFacts {
  std::vector<RdmaDevice> devices;
  std::vector<RdmaPort> ports;
};

/// What only the driver tells.
struct VerbsPort {
  std::string name;  ///< As RdmaPort's.
  int64_t active_mtu = kUnknown;
  int64_t max_mtu = kUnknown;
};
struct VerbsFacts {
  std::string error;                              ///< libibverbs cannot be loaded.
  std::vector<std::string> listed;                ///< Devices that libibverbs has a provider for.
  std::map<std::string, std::string> not_opened;  ///< Device and why.
  std::vector<VerbsPort> ports;
};

struct QosPort {
  std::string interface;
  std::string traffic_class;  ///< Forced by the driver for all of the device; empty: not.
  std::string trust;          ///< "dscp" or "pcp".
  std::string pfc;            ///< "0:off 1:off 2:off 3:on …", as dcb prints it.
  std::string ecn;            ///< "1" where both ends of DCQCN are on for some priority, "0" where not.
};
struct QosFacts {
  std::vector<QosPort> ports;  ///< Of RDMA over Ethernet.
};

struct PciDevice {
  std::string address;
  std::string kind;  ///< "NIC" or "GPU".
  std::string name;  ///< "mlx5_0", "NVIDIA 10de:2330".
  std::string driver;
  int64_t node = kUnknown;
  int64_t width = kUnknown;  ///< Lanes.
  int64_t max_width = kUnknown;
  int64_t slot_width = kUnknown;  ///< What the port above it can do.
  double speed = 0;               ///< GT/s.
  double max_speed = 0;
  double slot_speed = 0;
  std::string iommu;                      ///< Type of its IOMMU group: "DMA", "DMA-FQ", "identity".
  std::vector<std::string> acs_bridges;   ///< Ports above it that send peer traffic up to the root.
  bool acs_readable = false;              ///< Their configuration space could be read.
  std::vector<std::string> nearest_nics;  ///< Of a GPU: RDMA devices.
  std::string nearness;                   ///< "same switch", …, "other NUMA node", "unknown".
};
struct PcieFacts {
  int64_t nodes = 0;  ///< NUMA nodes.
  std::vector<PciDevice> devices;
  std::vector<std::string> without_rdma;  ///< NICs whose driver has an RDMA half: "0000:17:00.0 mlx5_core".
};

struct CpuFacts {
  std::map<std::string, int64_t> governors;  ///< Name and number of CPUs.
  std::string driver;                        ///< "intel_pstate".
};

struct CudaGpu {
  std::string name;
  std::string address;
  std::vector<std::string> reaches;  ///< Addresses of the GPUs whose memory it can copy directly.
  std::vector<std::string> nvlinks;  ///< Of these, those by native atomics: NVLink.
};
struct GpuFacts {
  std::string kernel_driver;                ///< /proc/driver/nvidia/version.
  std::vector<std::string> closed_devices;  ///< /dev/nvidia*: this process may not open them.
  int64_t nv_switches = 0;
};
struct CudaFacts {
  std::string error;
  std::string version;
  std::vector<CudaGpu> gpus;
};

struct Facts {
  std::map<std::string, std::string> environment;  ///< Secrets removed.
  std::map<std::string, std::string> settings;     ///< weightcast's, by name.
  std::map<std::string, std::string> missed;       ///< Probe, and why it gave no facts.
  HostFacts host;
  NameFacts names;
  RouteFacts route;
  ClockFacts clock;
  LimitFacts limits;
  ModuleFacts modules;
  RdmaFacts rdma;
  VerbsFacts verbs;
  QosFacts qos;
  PcieFacts pcie;
  CpuFacts cpu;
  GpuFacts gpu;
  CudaFacts cuda;
};

}  // namespace weightcast::doctor
