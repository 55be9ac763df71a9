#include "transport/tcp/registry.h"

#include "memory/populate.h"
#include "transport/other_release.h"

namespace weightcast::transport::tcp {

Status Registry::Register(const RegionName& name, const DescribedMemory& memory, Access access,
                          const StagedDevice* device) {
  WC_RETURN_IF_ERROR(RegionNames::Check(name, memory));
  if (device == nullptr) WC_RETURN_IF_ERROR(Populate({memory.address, memory.length}, access));
  const std::lock_guard lock(commands_.mutex());
  WC_RETURN_IF_ERROR(names_.Claim(name.id));
  commands_.Put(LocalRegion{OwnRegion::Registered(name, memory, access), device}, lock);
  return Status::Ok();
}

Result<RemoteRegion> Registry::Import(LinkId link, const RegionName& name, uint64_t length,
                                      std::string_view key) {
  if (!key.empty()) return OtherRelease("the peer's key of a region is not one of the tcp transport");
  WC_RETURN_IF_ERROR(CheckPeers(name));
  return Add(link, name, {name.id, name.generation, length});
}

}  // namespace weightcast::transport::tcp
