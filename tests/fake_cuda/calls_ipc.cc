// Legacy handles, and dma-bufs.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "fake_cuda/calls.h"
#include "fake_cuda/fake_cuda.h"
#include "fake_cuda/machine.h"
#include "fake_cuda/process.h"

namespace weightcast::fake_cuda {
namespace {

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

constexpr uint64_t kHostPage = 4096;

/// Whether these are pages of one allocation, or of mappings without gaps, of memory that NICs may reach.
bool Rdmable(const Process& process, uint64_t address, uint64_t length) {
  const uint64_t end = address + length;
  for (const auto& [begin, range] : process.ranges) {
    const uint64_t first = begin / kHostPage * kHostPage;
    const uint64_t last = RoundUp(begin + range.length, kHostPage);
    if (last <= address) continue;
    if (first > address || range.imported || !range.rdma) return false;
    if (range.kind != MemoryKind::kLegacy && range.kind != MemoryKind::kCreated) return false;
    if (range.kind == MemoryKind::kCreated && range.readers == 0) return false;
    if (last >= end) return true;
    if (range.kind != MemoryKind::kCreated) return false;
    address = last;
  }
  return false;
}

CUresult DmaBufOf(Process& process, uint64_t address, uint64_t length, int& fd) {
  const Reply made = process.Send({.kind = Ask::kDmaBuf, .a = address, .b = length}, &fd);
  return made.result;
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

CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t length,
                                       CUmemRangeHandleType type, unsigned long long flags) {
  Call call("cuMemGetHandleForAddressRange", kPlain);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!process.config.dmabuf) return CUDA_ERROR_NOT_SUPPORTED;
  if (length == 0 || address % kHostPage != 0 || length % kHostPage != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!Rdmable(process, address, length)) return CUDA_ERROR_INVALID_VALUE;
  int fd = -1;
  if (const CUresult result = DmaBufOf(process, address, length, fd); result != kOk) return result;
  fcntl(fd, F_SETFD, 0);  // Whoever relies on FD_CLOEXEC is found out.
  std::memcpy(handle, &fd, sizeof fd);
  return kOk;
}

}  // extern "C"
}  // namespace weightcast::drivers

using namespace weightcast::fake_cuda;  // NOLINT: this is its C side.

int fake_cuda_peermem(weightcast::drivers::CUdeviceptr address, size_t length) {
  Process& process = TheProcess();
  const std::lock_guard lock(process.mutex);
  const uint64_t first = address / kHostPage * kHostPage;
  const uint64_t last = RoundUp(address + length, kHostPage);
  int fd = -1;
  if (process.link == nullptr || !Rdmable(process, first, last - first)) return -1;
  return DmaBufOf(process, first, last - first, fd) == kOk ? fd : -1;
}
