// Legacy handles, and dma-bufs.
#include <unistd.h>

#include <cstring>

#include "fake_cuda/calls.h"
#include "fake_cuda/machine.h"
#include "fake_cuda/process.h"

namespace weightcast::fake_cuda {
namespace {

constexpr CUresult kOk = CUDA_SUCCESS;
constexpr char kMagic[8] = {'f', 'a', 'k', 'e', 'i', 'p', 'c', '1'};

CUresult Opened(Call& call, Process& process, uint64_t memory, CUdeviceptr* address) {
  const Reply reply = process.Send({.kind = Ask::kOpen, .gpu = process.GpuOf(call.device()), .a = memory});
  if (reply.result == kOpenedAtHome) {
    call.Wrong("a legacy handle cannot be opened in the process that made it: use the address itself");
  }
  if (reply.result != kOk) return reply.result;
  const int device = process.DeviceOf(reply.gpu);
  if (device < 0 && !process.config.open_hidden) {
    process.Send({.kind = Ask::kClose, .a = reply.a});
    return CUDA_ERROR_INVALID_DEVICE;
  }
  ReserveAddresses(reply.a, reply.b);
  process.ranges[reply.a] = {.length = reply.b,
                             .device = device < 0 ? call.device() : device,
                             .kind = MemoryKind::kLegacy,
                             .id = process.next_buffer++,
                             .memory = memory,
                             .imported = true,
                             .opened = 1};
  *address = reply.a;
  return kOk;
}

}  // namespace
}  // namespace weightcast::fake_cuda

namespace weightcast::drivers {
using namespace fake_cuda;  // NOLINT: this is its C side.
extern "C" {

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  Call call("cuIpcGetMemHandle", kPlain);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const auto found = FindRange(process, address);
  if (found == process.ranges.end()) call.Wrong(Text(address) + " is no device memory");
  if (found->second.kind != MemoryKind::kLegacy || found->second.imported) return CUDA_ERROR_INVALID_VALUE;
  if (found->first != address) {
    call.Wrong(Text(address) + " is not the beginning of its allocation, " + Text(found->first));
  }
  const Reply shared = process.Send({.kind = Ask::kShare, .a = address});
  std::memset(handle->reserved, 0, sizeof handle->reserved);
  std::memcpy(handle->reserved, kMagic, sizeof kMagic);
  std::memcpy(handle->reserved + sizeof kMagic, &shared.a, sizeof shared.a);
  return kOk;
}

// A second opening gives the same address.
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
  Call call("cuIpcOpenMemHandle", kDisturbs);
  if (call.result() != kOk) return call.result();
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  if (std::memcmp(handle.reserved, kMagic, sizeof kMagic) != 0) return CUDA_ERROR_INVALID_VALUE;
  uint64_t memory = 0;
  std::memcpy(&memory, handle.reserved + sizeof kMagic, sizeof memory);
  Process& process = TheProcess();
  for (auto& [begin, range] : process.ranges) {
    if (!range.imported || range.memory != memory) continue;
    ++range.opened;
    *address = begin;
    return kOk;
  }
  return Opened(call, process, memory, address);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  Call call("cuIpcCloseMemHandle", kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const auto found = process.ranges.find(address);
  if (found == process.ranges.end() || !found->second.imported) {
    call.Wrong(Text(address) + " was closed, or never came from cuIpcOpenMemHandle");
  }
  if (--found->second.opened > 0) return kOk;
  CheckUnused(call, process, address, found->second.length);
  process.Send({.kind = Ask::kClose, .a = address});
  ReleaseAddresses(address, found->second.length);
  process.ranges.erase(found);
  return kOk;
}

CUresult cuMemGetHandleForAddressRange(void*, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long) {
  Call call("cuMemGetHandleForAddressRange", kPlain);
  return call.result() != kOk ? call.result() : CUDA_ERROR_NOT_SUPPORTED;
}

}  // extern "C"
}  // namespace weightcast::drivers
