#include "tools/info/cuda.h"

#include "base/strings.h"
#include "tools/common/output.h"

namespace weightcast::tools {

std::string CudaText(const device::Inventory& inventory) {
  if (!inventory.status.ok()) return StrCat("CUDA: no: ", inventory.status.message(), "\n");
  Table table({"device", "name", "PCIe", "UUID", "reaches"});
  for (const device::ListedGpu& each : inventory.gpus) {
    table.Add({StrCat(each.gpu.ordinal), each.gpu.name, each.pci_address.empty() ? "-" : each.pci_address,
               each.uuid, each.reaches.empty() ? "-" : Join(each.reaches, ", ")});
  }
  return StrCat("CUDA: driver for CUDA ", inventory.driver, "\n", table.ToString());
}

Json CudaJson(const device::Inventory& inventory) {
  Json json{{"works", inventory.status.ok()},
            {"reason", TextOrNull(inventory.status.ok() ? "" : inventory.status.message())},
            {"driver", TextOrNull(inventory.driver)},
            {"devices", Json::array()}};
  for (const device::ListedGpu& each : inventory.gpus)
    json["devices"].push_back({{"device", each.gpu.ordinal},
                               {"name", each.gpu.name},
                               {"uuid", each.uuid},
                               {"pci_address", TextOrNull(each.pci_address)},
                               {"reaches", each.reaches}});
  return json;
}

}  // namespace weightcast::tools
