// Plain device memory and pinned host memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "fake_cuda/calls.h"
#include "fake_cuda/fake_cuda.h"
#include "fake_cuda/process.h"

namespace weightcast::fake_cuda {
namespace {

/// What cuPointerGetAttributes says of an address. This is one that nothing is known of.
struct About {
  unsigned int type = 0;
  unsigned long long id = 0;
  int device = -2;
  unsigned long long types = 0;
  bool managed = false;
  bool legacy = false;
  bool pooled = false;
};

About AboutAddress(Process& process, uint64_t address) {
  if (const auto range = FindRange(process, address); range != process.ranges.end()) {
    const Range& found = range->second;
    return {.type = CU_MEMORYTYPE_DEVICE,
            .id = found.id,
            .device = found.device,
            .types = found.types,
            .managed = found.kind == MemoryKind::kManaged,
            .legacy = found.kind == MemoryKind::kLegacy && !found.imported,
            .pooled = found.kind == MemoryKind::kPooled};
  }
  if (const auto pinned = FindPinned(process, address); pinned != process.pinned.end()) {
    return {.type = CU_MEMORYTYPE_HOST, .id = pinned->second.id, .device = pinned->second.device};
  }
  return {};
}

CUresult Put(const About& about, CUpointer_attribute name, void* value) {
  switch (name) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      std::memcpy(value, &about.type, sizeof about.type);
      return kOk;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      std::memcpy(value, &about.id, sizeof about.id);
      return kOk;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      std::memcpy(value, &about.managed, sizeof about.managed);
      return kOk;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      std::memcpy(value, &about.device, sizeof about.device);
      return kOk;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      std::memcpy(value, &about.legacy, sizeof about.legacy);
      return kOk;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      std::memcpy(value, &about.types, sizeof about.types);
      return kOk;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: {
      void* const pool = about.pooled ? reinterpret_cast<void*>(0x7FB0'0000'0000) : nullptr;
      std::memcpy(value, &pool, sizeof pool);
      return kOk;
    }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult Allocate(Call& call, MemoryKind kind, CUdeviceptr* address, size_t length) {
  if (call.result() != kOk) return call.result();
  if (length == 0) return CUDA_ERROR_INVALID_VALUE;
  Process& process = TheProcess();
  const Reply made = process.Send({.kind = Ask::kAlloc,
                                   .gpu = process.GpuOf(call.device()),
                                   .a = length,
                                   .b = static_cast<uint64_t>(kind)});
  if (made.result != kOk) return made.result;
  ReserveAddresses(made.a, length);
  process.ranges[made.a] = {
      .length = length, .device = call.device(), .kind = kind, .id = process.next_buffer++, .memory = made.b};
  *address = made.a;
  return kOk;
}

/// Whether the process has memory at all of these pages.
bool HasMemory(uint64_t address, uint64_t length) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = address / page * page;
  return madvise(reinterpret_cast<void*>(begin), RoundUp(address + length - begin, page),
                 MADV_POPULATE_READ) == 0;
}

}  // namespace
}  // namespace weightcast::fake_cuda

namespace weightcast::drivers {
using namespace fake_cuda;  // NOLINT: this is its C side.
extern "C" {

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* names, void** values,
                                CUdeviceptr address) {
  Call call("cuPointerGetAttributes", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  const About about = AboutAddress(TheProcess(), address);
  for (unsigned int i = 0; i < count; ++i) {
    if (const CUresult result = Put(about, names[i], values[i]); result != kOk) return result;
  }
  return kOk;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* length, CUdeviceptr address) {
  Call call("cuMemGetAddressRange", kPlain);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  uint64_t begin = 0;
  uint64_t bytes = 0;
  const auto range = FindRange(process, address);
  if (range != process.ranges.end() && range->second.readers != 0) {
    begin = range->first;
    bytes = range->second.length;
  } else if (const auto pinned = FindPinned(process, address);
             range == process.ranges.end() && pinned != process.pinned.end()) {
    begin = pinned->first;
    bytes = pinned->second.length;
  } else {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (base != nullptr) *base = begin;
  if (length != nullptr) *length = bytes;
  return kOk;
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  Call call("cuMemGetInfo", kPlain);
  if (call.result() != kOk) return call.result();
  const Reply reply = TheProcess().Send({.kind = Ask::kMemInfo, .gpu = TheProcess().GpuOf(call.device())});
  *free = reply.a;
  *total = reply.b;
  return kOk;
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t length) {
  Call call("cuMemAlloc", kDisturbs);
  return Allocate(call, MemoryKind::kLegacy, address, length);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  Call call("cuMemFree", kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  if (address == 0) return kOk;
  const auto found = process.ranges.find(address);
  if (found == process.ranges.end()) call.Wrong(Text(address) + " was freed, or never was allocated");
  if (found->second.kind == MemoryKind::kCreated || found->second.imported) {
    call.Wrong(Text(address) + " was not allocated with cuMemAlloc");
  }
  CheckUnused(call, process, address, found->second.length);
  const Reply freed = process.Send({.kind = Ask::kFree, .a = address});
  if (freed.result != kOk) call.Wrong(Text(address) + " is still open in another process");
  ReleaseAddresses(address, found->second.length);
  process.ranges.erase(found);
  return kOk;
}

CUresult cuMemHostAlloc(void** host, size_t length, unsigned int flags) {
  Call call("cuMemHostAlloc", kDisturbs);
  if (call.result() != kOk) return call.result();
  constexpr unsigned int kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (length == 0 || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  Process& process = TheProcess();
  int fd = -1;
  const Reply made =
      process.Send({.kind = Ask::kAlloc, .a = length, .b = static_cast<uint64_t>(MemoryKind::kHost)}, &fd);
  if (made.result != kOk) return made.result;
  MapAt(made.a, RoundUp(length, 4096), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd);
  close(fd);
  process.pinned[made.a] = {
      .length = length, .device = call.device(), .id = process.next_buffer++, .allocated = true};
  *host = reinterpret_cast<void*>(made.a);
  return kOk;
}

CUresult cuMemFreeHost(void* host) {
  Call call("cuMemFreeHost", kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const auto found = process.pinned.find(reinterpret_cast<uint64_t>(host));
  if (found == process.pinned.end() || !found->second.allocated) {
    call.Wrong(Text(reinterpret_cast<uint64_t>(host)) + " was freed, or never came from cuMemHostAlloc");
  }
  CheckUnused(call, process, found->first, found->second.length);
  process.Send({.kind = Ask::kFree, .a = found->first});
  ReleaseAddresses(found->first, found->second.length);
  process.pinned.erase(found);
  return kOk;
}

CUresult cuMemHostRegister_v2(void* host, size_t length, unsigned int flags) {
  Call call("cuMemHostRegister", kDisturbs);
  if (call.result() != kOk) return call.result();
  constexpr unsigned int kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  const auto address = reinterpret_cast<uint64_t>(host);
  if (length == 0 || host == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  Process& process = TheProcess();
  for (const auto& [begin, memory] : process.pinned) {
    if (begin < address + length && address < begin + memory.length) {
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
  }
  if (IsDevice(address)) call.Wrong(Text(address) + " is device memory");
  if (!HasMemory(address, length)) return CUDA_ERROR_INVALID_VALUE;
  process.pinned[address] = {.length = length, .device = call.device(), .id = process.next_buffer++};
  return kOk;
}

CUresult cuMemHostUnregister(void* host) {
  Call call("cuMemHostUnregister", kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const auto found = process.pinned.find(reinterpret_cast<uint64_t>(host));
  if (found == process.pinned.end() || found->second.allocated) {
    call.Wrong(Text(reinterpret_cast<uint64_t>(host)) + " is not registered");
  }
  CheckUnused(call, process, found->first, found->second.length);
  process.pinned.erase(found);
  return kOk;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* host, unsigned int flags) {
  Call call("cuMemHostGetDevicePointer", kPlain);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const auto number = reinterpret_cast<uint64_t>(host);
  if (flags != 0 || FindPinned(process, number) == process.pinned.end()) return CUDA_ERROR_INVALID_VALUE;
  *address = number;
  return kOk;
}

}  // extern "C"
}  // namespace weightcast::drivers

using namespace weightcast::fake_cuda;  // NOLINT: this is its C side.

int fake_cuda_alloc_managed(weightcast::drivers::CUdeviceptr* address, size_t length) {
  Call call("cuMemAllocManaged", kDisturbs);
  return Allocate(call, MemoryKind::kManaged, address, length);
}

int fake_cuda_alloc_pooled(weightcast::drivers::CUdeviceptr* address, size_t length) {
  Call call("cuMemAllocAsync", kPlain);
  return Allocate(call, MemoryKind::kPooled, address, length);
}
