#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/strings.h"
#include "scratch_folder.h"

namespace weightcast::topology {

/// A made-up /sys, with links where the kernel has links. Gone with the test.
class Tree {
 public:
  [[nodiscard]] const std::filesystem::path& root() const { return root_; }

  void Write(const std::string& file, std::string_view text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << "\n";
  }
  void Folder(const std::string& folder) { std::filesystem::create_directories(root_ / folder); }
  /// Relative, as the kernel makes them.
  void Link(const std::string& from, const std::string& to) {
    std::filesystem::create_directories((root_ / from).parent_path());
    const auto target = std::filesystem::relative(root_ / to, (root_ / from).parent_path());
    std::filesystem::create_directory_symlink(target, root_ / from);
  }

  void Nodes(int count) {
    for (int i = 0; i < count; ++i) Folder(StrCat("devices/system/node/node", i));
    Write("devices/system/node/online", "0");
  }
  /// `path` below devices/: "pci0000:16/0000:16:01.0/0000:17:00.0".
  void Pci(const std::string& path, int node, std::string_view kind = "0x020000",
           std::string_view vendor = "0x15b3", std::string_view device = "0x1021") {
    const std::string folder = StrCat("devices/", path);
    Write(StrCat(folder, "/numa_node"), StrCat(node));
    Write(StrCat(folder, "/class"), kind);
    Write(StrCat(folder, "/vendor"), vendor);
    Write(StrCat(folder, "/device"), device);
    Link(StrCat("bus/pci/devices/", path.substr(path.rfind('/') + 1)), folder);
  }
  void Gpu(const std::string& path, int node) { Pci(path, node, "0x030200", "0x10de", "0x2330"); }
  /// An RDMA device of a PCI device, with its network interface.
  void Nic(const std::string& name, const std::string& path, int node, const std::string& interface) {
    Pci(path, node);
    Rdma(name, path);
    Interface(interface, path);
  }
  /// An RDMA device of a PCI device, or of a part of one, that is there already.
  void Rdma(const std::string& name, const std::string& path) {
    const std::string folder = StrCat("devices/", path, "/infiniband/", name);
    Write(StrCat(folder, "/ports/1/rate"), "400 Gb/sec (4X NDR)");
    Link(StrCat(folder, "/device"), StrCat("devices/", path));
    Link(StrCat("class/infiniband/", name), folder);
  }
  void Interface(const std::string& name, const std::string& path, int dev_port = 0) {
    const std::string folder = StrCat("devices/", path, "/net/", name);
    Write(StrCat(folder, "/dev_port"), StrCat(dev_port));
    Link(StrCat(folder, "/device"), StrCat("devices/", path));
    Link(StrCat("class/net/", name), folder);
  }
  /// An interface of software on top of `lower`.
  void VirtualInterface(const std::string& name, std::initializer_list<std::string> lower) {
    const std::string folder = StrCat("devices/virtual/net/", name);
    Folder(folder);
    for (const std::string& one : lower) Link(StrCat(folder, "/lower_", one), StrCat("class/net/", one));
    Link(StrCat("class/net/", name), folder);
  }
  /// An RDMA device of software.
  void VirtualRdma(const std::string& name, const std::string& parent) {
    const std::string folder = StrCat("devices/virtual/infiniband/", name);
    Write(StrCat(folder, "/ports/1/rate"), "10 Gb/sec (4X SDR)");
    if (!parent.empty()) Write(StrCat(folder, "/parent"), parent);
    Link(StrCat("class/infiniband/", name), folder);
  }

 private:
  const test::ScratchFolder folder_;
  const std::filesystem::path root_ = folder_.path();
};

/// A DGX: four switches, two for each of two processors, with two GPUs and two NICs each; and beside them two
/// NICs for storage, one for each processor, each below a host bridge of its own.
inline void MakeDgx(Tree& tree) {
  tree.Nodes(2);
  const std::string bridges[] = {"15", "37", "97", "b7"};
  for (int i = 0; i < 4; ++i) {
    const std::string& bus = bridges[i];
    const std::string up = StrCat("pci0000:", bus, "/0000:", bus, ":01.0/0000:", bus, ":10.0");
    for (int j = 0; j < 2; ++j) {
      const std::string down = StrCat(up, "/0000:", bus, ":2", j, ".0");
      tree.Gpu(StrCat(down, "/0000:", bus, ":4", j, ".0"), i / 2);
      const int nic = 2 * i + j;
      const std::string below = StrCat(up, "/0000:", bus, ":3", j, ".0/0000:", bus, ":5", j, ".0");
      tree.Nic(StrCat("mlx5_", nic), below, i / 2, StrCat("eth", nic));
    }
  }
  tree.Nic("mlx5_8", "pci0000:29/0000:29:01.0/0000:2a:00.0", 0, "eth8");
  tree.Nic("mlx5_9", "pci0000:a9/0000:a9:01.0/0000:aa:00.0", 1, "eth9");
  // The management controller's screen.
  tree.Pci("pci0000:00/0000:00:1c.0/0000:03:00.0", 0, "0x030000", "0x1a03", "0x2000");
}

}  // namespace weightcast::topology
