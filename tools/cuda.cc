#include "tools/cuda.h"

#include "base/strings.h"
#include "tools/output.h"

namespace weightcast::tools {

std::string CudaText(const device::Inventory& inventory) {
  if (!inventory.status.ok()) return StrCat("CUDA: no: ", inventory.status.message(), "\n");
  Table table({"device", "name", "PCIe", "UUID", "reaches"});
  for (const device::ListedGpu& each : inventory.gpus) {
    std::string reaches;
    for (const int other : each.reaches) reaches += StrCat(reaches.empty() ? "" : ", ", other);
    table.Add({StrCat(each.gpu.ordinal), each.gpu.name, each.pci_address.empty() ? "-" : each.pci_address,
               each.uuid, reaches.empty() ? "-" : reaches});
  }
  return StrCat("CUDA: driver for CUDA ", inventory.driver, "\n", table.ToString());
}

void AddCuda(Json& json, const device::Inventory& inventory) {
  json.Key("cuda").BeginObject().Key("works").Bool(inventory.status.ok()).Key("reason");
  inventory.status.ok() ? json.Null() : json.String(inventory.status.message());
  json.Key("driver");
  inventory.driver.empty() ? json.Null() : json.String(inventory.driver);
  json.Key("devices").BeginArray();
  for (const device::ListedGpu& each : inventory.gpus) {
    json.BeginObject().Key("device").Number(each.gpu.ordinal).Key("name").String(each.gpu.name);
    json.Key("uuid").String(each.uuid).Key("pci_address");
    each.pci_address.empty() ? json.Null() : json.String(each.pci_address);
    json.Key("reaches").BeginArray();
    for (const int other : each.reaches) json.Number(other);
    json.EndArray().EndObject();
  }
  json.EndArray().EndObject();
}

}  // namespace weightcast::tools
