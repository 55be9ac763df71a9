// Memory in parts: handles, reserved addresses, mappings.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "fake_cuda/calls.h"
#include "fake_cuda/process.h"

namespace weightcast::fake_cuda {
namespace {

constexpr uint64_t kAllTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
constexpr char kFabric[8] = {'f', 'a', 'k', 'e', 'f', 'a', 'b', '1'};

Handle& HandleOf(Call& call, Process& process, CUmemGenericAllocationHandle handle) {
  const auto found = process.handles.find(handle);
  if (found == process.handles.end()) call.Wrong("the handle was released, or never was one");
  return found->second;
}

/// The reservation that holds these bytes.
void CheckReserved(Call& call, Process& process, uint64_t address, uint64_t length) {
  auto after = process.reservations.upper_bound(address);
  if (after != process.reservations.begin()) {
    --after;
    if (address + length <= after->first + after->second) return;
  }
  call.Wrong(Text(address) + " was not reserved");
}

/// Calls visit(address, range) for the mappings that make up exactly these bytes.
template <typename Visit>
void ForEachMapping(Call& call, Process& process, uint64_t address, uint64_t length, Visit visit) {
  const uint64_t end = address + length;
  while (address < end) {
    const auto found = process.ranges.find(address);
    if (found == process.ranges.end() || found->second.kind != MemoryKind::kCreated) {
      call.Wrong("no mapping begins at " + Text(address));
    }
    address += found->second.length;
    if (address > end) call.Wrong("a mapping cannot be divided at " + Text(end));
    visit(found->first, found->second);
  }
}

bool Valid(const Process& process, const CUmemAllocationProp& properties) {
  const auto types = static_cast<uint64_t>(properties.requestedHandleTypes);
  return properties.type == CU_MEM_ALLOCATION_TYPE_PINNED && (types & ~kAllTypes) == 0 &&
         properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties.location.id >= 0 &&
         properties.location.id < static_cast<int>(process.visible.size()) &&
         properties.win32HandleMetaData == nullptr;
}

CUmemGenericAllocationHandle AddHandle(Process& process, const Handle& handle) {
  const uint64_t number = process.NewObject();
  process.handles[number] = handle;
  return number;
}

void Allow(Range& range, int device, CUmemAccess_flags flags) {
  const uint32_t bit = 1U << device;
  range.readers = flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? range.readers & ~bit : range.readers | bit;
  range.writers = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? range.writers | bit : range.writers & ~bit;
}

}  // namespace
}  // namespace weightcast::fake_cuda

namespace weightcast::drivers {
using namespace fake_cuda;  // NOLINT: this is its C side.
extern "C" {

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t length,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  Call call("cuMemCreate", kNoContext | kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  if (flags != 0 || length == 0 || length % kGranularity != 0 || !Valid(process, *properties)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto types = static_cast<uint64_t>(properties->requestedHandleTypes);
  if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0 && !process.config.imex) return CUDA_ERROR_NOT_PERMITTED;
  const int device = properties->location.id;
  if (const int lost = process.LostOf(device); lost != 0) return lost;
  const Reply made =
      process.Send({.kind = Ask::kCreate, .gpu = process.GpuOf(device), .a = length, .b = types});
  if (made.result != kOk) return made.result;
  *handle = AddHandle(process, {.memory = made.a,
                                .length = length,
                                .types = types,
                                .device = device,
                                .rdma = properties->allocFlags.gpuDirectRDMACapable != 0});
  return kOk;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Call call("cuMemRelease", kNoContext | kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  Handle& found = HandleOf(call, process, handle);
  if (--found.references > 0) return kOk;
  process.Send({.kind = Ask::kRelease, .a = found.memory});
  process.handles.erase(handle);
  return kOk;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  Call call("cuMemGetAllocationPropertiesFromHandle", kNoContext);
  if (call.result() != kOk) return call.result();
  const Handle& found = HandleOf(call, TheProcess(), handle);
  *properties = {};
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->requestedHandleTypes = static_cast<CUmemAllocationHandleType>(found.types);
  properties->location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = found.device};
  properties->allocFlags.gpuDirectRDMACapable = found.rdma ? 1 : 0;
  return kOk;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t length, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  Call call("cuMemAddressReserve", kNoContext | kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  if (length == 0 || length % kGranularity != 0 || flags != 0 || alignment > kGranularity) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Reply made = process.Send({.kind = Ask::kReserve, .a = length});
  ReserveAddresses(made.a, length);
  process.reservations[made.a] = length;
  *address = made.a;
  return kOk;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t length) {
  Call call("cuMemAddressFree", kNoContext | kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const auto found = process.reservations.find(address);
  if (found == process.reservations.end() || found->second != length) {
    call.Wrong(Text(address) + " is no reservation of " + std::to_string(length) + " bytes");
  }
  const auto mapped = process.ranges.lower_bound(address);
  if (mapped != process.ranges.end() && mapped->first < address + length) {
    call.Wrong("memory is still mapped at " + Text(mapped->first));
  }
  ReleaseAddresses(address, length);
  process.reservations.erase(found);
  process.Send({.kind = Ask::kUnreserve, .a = address, .b = length});
  return kOk;
}

CUresult cuMemMap(CUdeviceptr address, size_t length, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  Call call("cuMemMap", kNoContext | kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const Handle& found = HandleOf(call, process, handle);
  if (offset != 0 || flags != 0 || address % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  // An error, as a peer may have told a wrong length and nothing but this call finds it out.
  if (length != found.length) return length == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
  CheckReserved(call, process, address, length);
  const auto next = process.ranges.lower_bound(address);
  if (FindRange(process, address) != process.ranges.end() ||
      (next != process.ranges.end() && next->first < address + length)) {
    call.Wrong("there is a mapping at " + Text(address) + " already");
  }
  process.Send({.kind = Ask::kMap, .a = address, .b = found.memory});
  process.ranges[address] = {.length = length,
                             .device = found.device,
                             .kind = MemoryKind::kCreated,
                             .id = process.next_buffer++,
                             .memory = found.memory,
                             .types = found.types,
                             .rdma = found.rdma,
                             .readers = 0,
                             .writers = 0};
  return kOk;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t length) {
  Call call("cuMemUnmap", kNoContext | kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  CheckUnused(call, process, address, length);
  std::vector<uint64_t> all;
  ForEachMapping(call, process, address, length, [&](uint64_t at, Range&) { all.push_back(at); });
  for (const uint64_t at : all) {
    process.Send({.kind = Ask::kUnmap, .a = at});
    process.ranges.erase(at);
  }
  return kOk;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t length, const CUmemAccessDesc* access, size_t count) {
  Call call("cuMemSetAccess", kNoContext | kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  for (size_t i = 0; i < count; ++i) {
    const int device = access[i].location.id;
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 ||
        device >= static_cast<int>(process.visible.size())) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    bool reached = true;
    ForEachMapping(call, process, address, length, [&](uint64_t, Range& range) {
      reached = reached && (range.device == device ||
                            process.Reaches(process.GpuOf(device), process.GpuOf(range.device)));
    });
    if (!reached) return CUDA_ERROR_INVALID_DEVICE;
    ForEachMapping(call, process, address, length, [&](uint64_t at, Range& range) {
      Allow(range, device, access[i].flags);
      process.Send({.kind = Ask::kAccess, .a = at, .b = range.readers != 0 ? 1U : 0U});
    });
  }
  return kOk;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  Call call("cuMemRetainAllocationHandle", kNoContext);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const auto found = FindRange(process, reinterpret_cast<uint64_t>(address));
  if (found == process.ranges.end() || found->second.kind != MemoryKind::kCreated) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (auto& [number, known] : process.handles) {
    if (known.memory != found->second.memory) continue;
    ++known.references;
    *handle = number;
    return kOk;
  }
  const Range& range = found->second;
  process.Send({.kind = Ask::kRetain, .a = range.memory});
  *handle = AddHandle(process, {.memory = range.memory,
                                .length = range.length,
                                .types = range.types,
                                .device = range.device,
                                .rdma = range.rdma});
  return kOk;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  Call call("cuMemExportToShareableHandle", kNoContext);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const Handle& found = HandleOf(call, process, handle);
  if (flags != 0 || (found.types & static_cast<uint64_t>(type)) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    CUmemFabricHandle fabric{};
    std::memcpy(fabric.data, kFabric, sizeof kFabric);
    std::memcpy(fabric.data + sizeof kFabric, &found.memory, sizeof found.memory);
    std::memcpy(shareable, &fabric, sizeof fabric);
    return kOk;
  }
  int fd = -1;
  const Reply exported = process.Send({.kind = Ask::kExport, .a = found.memory}, &fd);
  if (exported.result != kOk) return exported.result;
  // Driver 580 sets FD_CLOEXEC. Others may not, and whoever relies on it is found out.
  fcntl(fd, F_SETFD, 0);
  std::memcpy(shareable, &fd, sizeof fd);
  return kOk;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  Call call("cuMemImportFromShareableHandle", kNoContext | kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  Request request{.kind = Ask::kImport};
  int fd = -1;
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    fd = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
    if (fcntl(fd, F_GETFD) < 0) return CUDA_ERROR_UNKNOWN;
  } else if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    if (std::memcmp(shareable, kFabric, sizeof kFabric) != 0) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(&request.a, static_cast<const char*>(shareable) + sizeof kFabric, sizeof request.a);
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Reply got = process.Send(request, &fd);
  if (got.result != kOk) return got.result;
  const int device = process.DeviceOf(got.gpu);
  if (device < 0 && !process.config.open_hidden) {
    process.Send({.kind = Ask::kRelease, .a = got.a});
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *handle = AddHandle(process, {.memory = got.a,
                                .length = got.b,
                                .types = got.c,
                                .device = device < 0 ? std::max(call.device(), 0) : device});
  return kOk;
}

}  // extern "C"
}  // namespace weightcast::drivers
