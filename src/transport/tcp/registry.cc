#include "transport/tcp/registry.h"

#include <utility>

#include "memory/populate.h"

namespace weightcast::transport::tcp {

Status Registry::Create() { return commands_.Create(); }

Status Registry::Register(const RegionName& name, const DescribedMemory& memory, Access access,
                          const StagedDevice* device) {
  WC_RETURN_IF_ERROR(RegionNames::Check(name, memory));
  if (device == nullptr) WC_RETURN_IF_ERROR(Populate({memory.address, memory.length}, access));
  const std::lock_guard lock(commands_.mutex());
  WC_RETURN_IF_ERROR(names_.Claim(name.id));
  commands_.Put(LocalRegion{OwnRegion::Registered(name, memory, access), device}, lock);
  return Status::Ok();
}

void Registry::Deregister(uint32_t id) {
  const std::lock_guard lock(commands_.mutex());
  if (names_.Has(id)) commands_.Put(RemoveRegion{id}, lock);
}

Result<RemoteRegion> Registry::Import(LinkId link, const RegionName& name, uint64_t length,
                                      std::string_view key) {
  if (!key.empty())
    return Status(Code::kProtocol,
                  "the peer's key of a region is not one of the tcp transport; run the same release of "
                  "weightcast on both sides");
  if (name.generation == 0)
    return Status(Code::kProtocol,
                  "the peer's region has no generation; run the same release of weightcast on both sides");
  const std::lock_guard lock(commands_.mutex());
  WC_ASSIGN_OR_RETURN(const uint32_t index, names_.Import(link, name));
  commands_.Put(AddImport{link, index, {name.id, name.generation, length}}, lock);
  return static_cast<RemoteRegion>(index);
}

void Registry::OpenLink(LinkId link, Incarnation peer) {
  const std::lock_guard lock(commands_.mutex());
  names_.OpenLink(link, peer);
}

void Registry::CloseLink(LinkId link) {
  const std::lock_guard lock(commands_.mutex());
  names_.CloseLink(link);
}

void Registry::FreeRegion(uint32_t id) {
  const std::lock_guard lock(commands_.mutex());
  names_.Free(id);
}

void Registry::FreeImport(LinkId link, RemoteRegion region) {
  const std::lock_guard lock(commands_.mutex());
  names_.Release(link, region);
}

}  // namespace weightcast::transport::tcp
