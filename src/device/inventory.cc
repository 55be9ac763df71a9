#include "device/inventory.h"

#include <array>
#include <cctype>
#include <cstdio>

#include "base/strings.h"

namespace weightcast::device {
namespace {

/// The driver writes capital letters in some versions, sysfs small ones.
std::string PciAddress(drivers::Cuda& cuda, const Gpu& gpu) {
  std::array<char, 32> text{};
  if (cuda.DeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), gpu.handle) != drivers::CUDA_SUCCESS)
    return {};
  std::string address(text.data());
  for (char& digit : address) digit = static_cast<char>(std::tolower(static_cast<unsigned char>(digit)));
  return address;
}

std::string DriverText(drivers::Cuda& cuda) {
  int version = 0;
  if (cuda.DriverGetVersion(&version) != drivers::CUDA_SUCCESS) return {};
  return StrCat(version / 1000, ".", version % 1000 / 10);
}

bool Has(drivers::Cuda& cuda, drivers::CUdevice_P2PAttribute attribute, const Gpu& from, const Gpu& to) {
  int value = 0;
  return cuda.DeviceGetP2PAttribute(&value, attribute, from.handle, to.handle) == drivers::CUDA_SUCCESS &&
         value != 0;
}

ListedGpu List(const Gpus& gpus, const Gpu& gpu) {
  drivers::Cuda& cuda = gpus.cuda();
  ListedGpu listed{.gpu = gpu,
                   .uuid = UuidText(gpu.uuid),
                   .pci_address = PciAddress(cuda, gpu),
                   .reaches = {},
                   .linked = {}};
  for (const Gpu& other : gpus.all()) {
    if (other.ordinal == gpu.ordinal ||
        !Has(cuda, drivers::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, gpu, other))
      continue;
    listed.reaches.push_back(other.ordinal);
    if (Has(cuda, drivers::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, gpu, other))
      listed.linked.push_back(other.ordinal);
  }
  return listed;
}

}  // namespace

Inventory TakeInventory(const Settings& settings) {
  Inventory inventory;
  const auto gpus = Gpus::Open(settings, drivers::CudaUse::kAsked);
  inventory.status = gpus.status();
  if (!gpus.ok()) return inventory;
  inventory.driver = DriverText((*gpus)->cuda());
  for (const Gpu& gpu : (*gpus)->all()) inventory.gpus.push_back(List(**gpus, gpu));
  return inventory;
}

}  // namespace weightcast::device
