#include "device/mapped_range.h"

#include <cstdint>
#include <cstring>
#include <variant>

#include "base/strings.h"
#include "device/error.h"

namespace weightcast::device {

using drivers::CUdeviceptr;

// A lost context takes nothing back: its mappings end with the process.
Mappings::Range::~Range() {
  drivers::Cuda& cuda = health_->context().cuda();
  if (legacy_) cuda.IpcCloseMemHandle(At(0));
  size_t offset = 0;
  for (const size_t length : mapped_) {
    cuda.MemUnmap(At(offset), length);
    offset += length;
  }
  if (reserved_) cuda.MemAddressFree(At(0), length_);
}

void Mappings::Range::Own(std::byte* address, size_t length) {
  address_ = address;
  length_ = length;
}

Status Mappings::Range::OpenLegacy(const LegacyHandle& handle, size_t length) {
  drivers::CUipcMemHandle raw{};
  std::memcpy(&raw, handle.bytes.data(), sizeof raw);
  CUdeviceptr opened = 0;
  WC_RETURN_IF_ERROR(
      WC_CHECK_DRIVER(*health_, IpcOpenMemHandle, &opened, raw, drivers::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  address_ = reinterpret_cast<std::byte*>(opened);
  length_ = length;
  legacy_ = true;
  // A copy beyond the end would cost this process its context, so the peer's word is not enough.
  CUdeviceptr base = 0;
  size_t found = 0;
  WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(*health_, MemGetAddressRange, &base, &found, opened));
  if (base + found >= opened + length) return Status::Ok();
  return Error(Code::kProtocol, "the peer described an allocation of ", length,
               " bytes, but its handle is of ", base + found - opened, " bytes");
}

Status Mappings::Range::Reserve(size_t length) {
  CUdeviceptr reserved = 0;
  WC_RETURN_IF_ERROR(health_->Check(health_->context().cuda().MemAddressReserve(&reserved, length, 0, 0, 0),
                                    "cuMemAddressReserve"));
  address_ = reinterpret_cast<std::byte*>(reserved);
  length_ = length;
  reserved_ = true;
  return Status::Ok();
}

Result<drivers::CUmemGenericAllocationHandle> Mappings::Range::ImportHandle(const Handle& handle) {
  drivers::CUmemGenericAllocationHandle imported = 0;
  void* source = nullptr;
  auto type = drivers::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  FabricHandle fabric;
  if (const auto* fd = std::get_if<UniqueFd>(&handle)) {
    source = reinterpret_cast<void*>(static_cast<intptr_t>(fd->get()));
  } else if (const auto* given = std::get_if<FabricHandle>(&handle)) {
    fabric = *given;
    source = fabric.bytes.data();
    type = drivers::CU_MEM_HANDLE_TYPE_FABRIC;
  } else {
    return Status(Code::kProtocol, "the peer sent a handle of cuMemAlloc memory for memory of cuMemMap");
  }
  drivers::Cuda& cuda = health_->context().cuda();
  const auto result = cuda.MemImportFromShareableHandle(&imported, source, type);
  // So the driver answers to a descriptor that is none of CUDA's; the context still works.
  if (result == drivers::CUDA_ERROR_UNKNOWN || result == drivers::CUDA_ERROR_INVALID_VALUE) {
    return Error(Code::kProtocol, "the peer sent something that is not a handle of device memory: ",
                 DriverStatus(cuda, result, "cuMemImportFromShareableHandle").message());
  }
  WC_RETURN_IF_ERROR(health_->Check(result, "cuMemImportFromShareableHandle"));
  return imported;
}

Status Mappings::Range::MapBlock(const Handle& handle, size_t length) {
  drivers::Cuda& cuda = health_->context().cuda();
  WC_ASSIGN_OR_RETURN(const auto imported, ImportHandle(handle));
  const Status mapped = WC_CHECK_DRIVER(*health_, MemMap, At(end_), length, 0, imported, 0);
  cuda.MemRelease(imported);  // The mapping keeps the memory.
  if (!mapped.ok()) return mapped;
  mapped_.push_back(length);
  end_ += length;
  return Status::Ok();
}

Status Mappings::Range::GiveAccess() {
  drivers::CUmemAccessDesc access{};
  access.location.type = drivers::CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = health_->context().ordinal();
  access.flags = drivers::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return health_->Check(health_->context().cuda().MemSetAccess(At(0), length_, &access, 1), "cuMemSetAccess");
}

}  // namespace weightcast::device
