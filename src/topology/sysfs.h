#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "topology/place.h"

namespace weightcast::topology {

struct Gpu {
  Place place;
  std::string vendor;  ///< "NVIDIA", "AMD" or "Intel".
  uint16_t vendor_id = 0;
  uint16_t device_id = 0;
};

/// What the kernel tells of RDMA devices, GPUs and NUMA nodes, and where they sit. What it does not tell is
/// empty; nothing is an error, since in a container most of it may be missing.
class Sysfs {
 public:
  /// `root`: of the tree; a test has its own.
  explicit Sysfs(std::filesystem::path root = "/sys") : root_(std::move(root)) {}

  /// Names, mlx5_2 before mlx5_10.
  [[nodiscard]] std::vector<std::string> RdmaDevices() const;
  /// Of a device made by software (rxe, siw): that of the network interface below it.
  [[nodiscard]] Place PlaceOf(const std::string& device) const;
  /// The network interface of a GID, or without one that of the port.
  [[nodiscard]] std::string InterfaceOf(const std::string& device, int port, std::optional<int> gid) const;
  /// Gb/s that the kernel has for the port; 0: none.
  [[nodiscard]] double RateOf(const std::string& device, int port) const;

  /// Display controllers and accelerators of those who make GPUs, by PCI address: no picture of a management
  /// controller or of a virtual machine.
  [[nodiscard]] std::vector<Gpu> Gpus() const;
  /// NUMA nodes; empty where the kernel knows none.
  [[nodiscard]] std::vector<int> Nodes() const;

 private:
  using Path = std::filesystem::path;
  [[nodiscard]] Path DeviceFolder(const std::string& device) const;
  [[nodiscard]] Place PlaceOfInterface(const std::string& interface, int depth) const;

  std::filesystem::path root_;
};

}  // namespace weightcast::topology
