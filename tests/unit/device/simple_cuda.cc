#include "unit/device/simple_cuda.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace weightcast::device {
namespace {

CUcontext ContextOf(int device) { return reinterpret_cast<CUcontext>(static_cast<intptr_t>(device + 1)); }
CUdeviceptr Number(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }
void* Pointer(CUdeviceptr number) { return reinterpret_cast<void*>(number); }
SimpleCuda::Stream* Of(CUstream stream) { return reinterpret_cast<SimpleCuda::Stream*>(stream); }

}  // namespace

thread_local std::vector<CUcontext> SimpleCuda::current;
thread_local CUstreamCaptureMode SimpleCuda::mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// --- Controls

bool SimpleCuda::Step(uint32_t seed) {
  std::function<void()> next;
  {
    const std::lock_guard lock(mutex_);
    std::vector<Stream*> busy;
    for (const auto& stream : streams_)
      if (!stream->work.empty()) busy.push_back(stream.get());
    if (busy.empty() || lost_ != 0) return false;
    Stream* const chosen = busy[seed % busy.size()];
    next = std::move(chosen->work.front());
    chosen->work.pop_front();
  }
  next();
  return true;
}

CUresult SimpleCuda::Enter(const char* call, bool needs_context) {
  std::unique_lock lock(mutex_);
  ++calls_;
  if (needs_context && (current.empty() || mode != CU_STREAM_CAPTURE_MODE_RELAXED)) ++misuses_;
  if (blocked_ == call) {
    ++waiting_;
    changed_.wait(lock, [&] { return blocked_ != call; });
    --waiting_;
  }
  if (lost_ != 0) return lost_;
  const auto found = fail_.find(call);
  if (found == fail_.end()) return 0;
  const CUresult result = found->second;
  fail_.erase(found);
  return result;
}

CUdeviceptr SimpleCuda::Add(size_t length, const Range& range, CUdeviceptr at) {
  const std::lock_guard lock(mutex_);
  const CUdeviceptr address = at != 0 ? at : Number(std::aligned_alloc(4096, (length + 4095) / 4096 * 4096));
  Range added = range;
  added.length = length;
  added.id = next_++;
  ranges_[address] = added;
  return address;
}

std::pair<const CUdeviceptr, SimpleCuda::Range>* SimpleCuda::Find(CUdeviceptr address) {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return nullptr;
  auto& found = *std::prev(after);
  return address < found.first + found.second.length ? &found : nullptr;
}

std::byte* SimpleCuda::Device(size_t bytes, int ordinal) {
  Range range;
  range.ordinal = ordinal;
  return static_cast<std::byte*>(Pointer(Add(bytes, range)));
}

void SimpleCuda::FreeDevice(std::byte* address) {
  const std::lock_guard lock(mutex_);
  ranges_.erase(Number(address));
  std::free(address);
}

std::byte* SimpleCuda::Pages(size_t count, uint64_t handle_types) {
  const CUdeviceptr base = Number(std::aligned_alloc(kPage, count * kPage));
  for (size_t i = 0; i < count; ++i) {
    Range range;
    range.legacy = false;
    range.handle_types = handle_types;
    range.handle = next_++;
    handles_[range.handle] = 1;
    Add(kPage, range, base + i * kPage);
  }
  return static_cast<std::byte*>(Pointer(base));
}

void SimpleCuda::RemapPage(std::byte* address) {
  const std::lock_guard lock(mutex_);
  ranges_.at(Number(address)).id = next_++;
}

void SimpleCuda::FreePages(std::byte* address, size_t count) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < count; ++i) {
    const auto found = ranges_.find(Number(address) + i * kPage);
    handles_.erase(found->second.handle);
    ranges_.erase(found);
  }
  std::free(address);
}

// --- Devices and contexts

CUresult SimpleCuda::Init(unsigned) { return 0; }
CUresult SimpleCuda::GetErrorName(CUresult, const char** name) {
  *name = "CUDA_ERROR_OF_THE_TEST";
  return 0;
}
CUresult SimpleCuda::GetErrorString(CUresult, const char** words) {
  *words = "as the test wants";
  return 0;
}
CUresult SimpleCuda::DeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return 0;
}
CUresult SimpleCuda::DeviceGetCount(int* count) {
  *count = devices;
  return 0;
}
CUresult SimpleCuda::DeviceGetName(char* name, int, CUdevice) {
  std::strcpy(name, "simple");
  return 0;
}
CUresult SimpleCuda::DeviceGetUuid(CUuuid* uuid, CUdevice device) {
  std::memset(uuid, device + 1, sizeof *uuid);
  return 0;
}
CUresult SimpleCuda::DevicePrimaryCtxGetState(CUdevice, unsigned*, int* is_active) {
  *is_active = active ? 1 : 0;
  return Enter("cuDevicePrimaryCtxGetState", false);
}
CUresult SimpleCuda::DevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = ContextOf(device);
  ++contexts_;
  return Enter("cuDevicePrimaryCtxRetain", false);
}
CUresult SimpleCuda::DevicePrimaryCtxRelease(CUdevice) {
  --contexts_;
  return Enter("cuDevicePrimaryCtxRelease", false);
}
CUresult SimpleCuda::CtxPushCurrent(CUcontext context) {
  current.push_back(context);
  return 0;
}
CUresult SimpleCuda::CtxPopCurrent(CUcontext* context) {
  *context = current.back();
  current.pop_back();
  return 0;
}
CUresult SimpleCuda::CtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return Enter("cuCtxGetStreamPriorityRange");
}
CUresult SimpleCuda::CtxEnablePeerAccess(CUcontext, unsigned) { return Enter("cuCtxEnablePeerAccess"); }
CUresult SimpleCuda::ThreadExchangeStreamCaptureMode(CUstreamCaptureMode* wanted) {
  std::swap(*wanted, mode);
  return 0;
}

// --- Memory

CUresult SimpleCuda::PointerGetAttributes(unsigned count, CUpointer_attribute* names, void** values,
                                          CUdeviceptr address) {
  if (const CUresult result = Enter("cuPointerGetAttributes", false); result != 0) return result;
  const std::lock_guard lock(mutex_);
  const auto* const found = Find(address);
  const Range range = found != nullptr ? found->second : Range{.ordinal = -2, .type = 0, .legacy = false};
  for (unsigned i = 0; i < count; ++i) {
    switch (names[i]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned*>(values[i]) = range.type;
        break;
      case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *static_cast<unsigned long long*>(values[i]) = range.id;
        break;
      case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *static_cast<bool*>(values[i]) = range.managed;
        break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(values[i]) = range.ordinal;
        break;
      case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *static_cast<bool*>(values[i]) = range.legacy;
        break;
      case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *static_cast<unsigned long long*>(values[i]) = range.handle_types;
        break;
      case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *static_cast<void**>(values[i]) = range.pool;
        break;
    }
  }
  return 0;
}
CUresult SimpleCuda::MemGetAddressRange(CUdeviceptr* base, size_t* length, CUdeviceptr address) {
  if (const CUresult result = Enter("cuMemGetAddressRange"); result != 0) return result;
  const std::lock_guard lock(mutex_);
  const auto* const found = Find(address);
  if (found == nullptr || !found->second.accessible) return CUDA_ERROR_NOT_FOUND;
  *base = found->first;
  *length = found->second.length;
  return 0;
}
CUresult SimpleCuda::MemAlloc(CUdeviceptr* address, size_t bytes) {
  if (const CUresult result = Enter("cuMemAlloc"); result != 0) return result;
  *address = Add(bytes, {});
  ++live_;
  return 0;
}
CUresult SimpleCuda::MemFree(CUdeviceptr address) {
  const CUresult result = Enter("cuMemFree");
  FreeDevice(static_cast<std::byte*>(Pointer(address)));
  --live_;
  return result;
}
CUresult SimpleCuda::MemHostRegister(void*, size_t, unsigned) {
  const CUresult result = Enter("cuMemHostRegister");
  if (result == 0) ++live_;
  return result;
}
CUresult SimpleCuda::MemHostUnregister(void*) {
  --live_;
  return Enter("cuMemHostUnregister");
}
CUresult SimpleCuda::MemHostGetDevicePointer(CUdeviceptr* address, void* host, unsigned) {
  *address = Number(host);
  return Enter("cuMemHostGetDevicePointer");
}
CUresult SimpleCuda::MemHostAlloc(void** host, size_t bytes, unsigned) {
  if (const CUresult result = Enter("cuMemHostAlloc"); result != 0) return result;
  *host = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  ++live_;
  return 0;
}
CUresult SimpleCuda::MemFreeHost(void* host) {
  std::free(host);
  --live_;
  return Enter("cuMemFreeHost");
}

// --- Sharing

CUresult SimpleCuda::IpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  if (const CUresult result = Enter("cuIpcGetMemHandle"); result != 0) return result;
  std::memcpy(handle->reserved, &address, sizeof address);
  return 0;
}
// As if another process had exported it: the memory itself.
CUresult SimpleCuda::IpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned) {
  if (const CUresult result = Enter("cuIpcOpenMemHandle"); result != 0) return result;
  std::memcpy(address, handle.reserved, sizeof *address);
  ++live_;
  return 0;
}
CUresult SimpleCuda::IpcCloseMemHandle(CUdeviceptr) {
  --live_;
  return Enter("cuIpcCloseMemHandle");
}
CUresult SimpleCuda::MemRelease(CUmemGenericAllocationHandle) {
  --live_;
  return Enter("cuMemRelease");
}
CUresult SimpleCuda::MemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  if (const CUresult result = Enter("cuMemRetainAllocationHandle"); result != 0) return result;
  const std::lock_guard lock(mutex_);
  *handle = Find(Number(address))->second.handle;
  ++live_;
  return 0;
}
CUresult SimpleCuda::MemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                                CUmemAllocationHandleType type, unsigned long long) {
  if (const CUresult result = Enter("cuMemExportToShareableHandle"); result != 0) return result;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    std::memcpy(out, &handle, sizeof handle);
  } else {
    int ends[2];
    if (pipe(ends) != 0) return CUDA_ERROR_UNKNOWN;
    if (write(ends[1], &handle, sizeof handle) != sizeof handle) return CUDA_ERROR_UNKNOWN;
    close(ends[1]);
    *static_cast<int*>(out) = ends[0];
  }
  return 0;
}
CUresult SimpleCuda::MemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* from,
                                                  CUmemAllocationHandleType type) {
  if (const CUresult result = Enter("cuMemImportFromShareableHandle"); result != 0) return result;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    std::memcpy(handle, from, sizeof *handle);
  } else if (read(static_cast<int>(reinterpret_cast<intptr_t>(from)), handle, sizeof *handle) !=
             sizeof *handle) {
    return CUDA_ERROR_UNKNOWN;
  }
  ++live_;
  return 0;
}
CUresult SimpleCuda::MemAddressReserve(CUdeviceptr* address, size_t length, size_t, CUdeviceptr,
                                       unsigned long long) {
  if (const CUresult result = Enter("cuMemAddressReserve"); result != 0) return result;
  *address = Number(std::aligned_alloc(kPage, (length + kPage - 1) / kPage * kPage));
  ++live_;
  return 0;
}
CUresult SimpleCuda::MemAddressFree(CUdeviceptr address, size_t) {
  std::free(Pointer(address));
  --live_;
  return Enter("cuMemAddressFree");
}
CUresult SimpleCuda::MemMap(CUdeviceptr address, size_t length, size_t, CUmemGenericAllocationHandle handle,
                            unsigned long long) {
  if (const CUresult result = Enter("cuMemMap"); result != 0) return result;
  Range range;
  range.legacy = false;
  range.handle = handle;
  range.accessible = false;
  Add(length, range, address);
  ++live_;
  return 0;
}
CUresult SimpleCuda::MemUnmap(CUdeviceptr address, size_t) {
  Locked([&] { ranges_.erase(address); });
  --live_;
  return Enter("cuMemUnmap");
}
CUresult SimpleCuda::MemSetAccess(CUdeviceptr address, size_t length, const CUmemAccessDesc*, size_t) {
  if (const CUresult result = Enter("cuMemSetAccess"); result != 0) return result;
  const std::lock_guard lock(mutex_);
  for (auto& [at, range] : ranges_)
    if (at >= address && at < address + length) range.accessible = true;
  return 0;
}

// --- Streams and events

CUresult SimpleCuda::StreamCreateWithPriority(CUstream* stream, unsigned, int) {
  if (const CUresult result = Enter("cuStreamCreateWithPriority"); result != 0) return result;
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::make_unique<Stream>());
  *stream = reinterpret_cast<CUstream>(streams_.back().get());
  ++live_;
  return 0;
}
CUresult SimpleCuda::StreamDestroy(CUstream) {
  --live_;
  return Enter("cuStreamDestroy");
}
CUresult SimpleCuda::StreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  const bool captured = stream != nullptr && Of(stream)->captured;
  *status = captured ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return Enter("cuStreamIsCapturing");
}
CUresult SimpleCuda::StreamWriteValue64(CUstream stream, CUdeviceptr address, uint64_t value, unsigned) {
  if (const CUresult result = Enter("cuStreamWriteValue64"); result != 0) return result;
  if (!write_value) return CUDA_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(mutex_);
  Of(stream)->work.push_back([address, value] {
    static_cast<std::atomic<uint64_t>*>(Pointer(address))->store(value, std::memory_order_seq_cst);
  });
  return 0;
}
CUresult SimpleCuda::EventCreate(CUevent* event, unsigned) {
  if (const CUresult result = Enter("cuEventCreate"); result != 0) return result;
  const std::lock_guard lock(mutex_);
  *event = reinterpret_cast<CUevent>(next_++);
  events_[*event] = 0;
  ++live_;
  return 0;
}
CUresult SimpleCuda::EventDestroy(CUevent event) {
  Locked([&] { events_.erase(event); });
  --live_;
  return Enter("cuEventDestroy");
}
CUresult SimpleCuda::EventRecord(CUevent event, CUstream stream) {
  if (const CUresult result = Enter("cuEventRecord"); result != 0) return result;
  const std::lock_guard lock(mutex_);
  ++events_[event];
  Of(stream)->work.push_back([this, event] {
    Locked([&] {
      if (const auto found = events_.find(event); found != events_.end()) --found->second;
    });
  });
  return 0;
}
CUresult SimpleCuda::EventQuery(CUevent event) {
  if (const CUresult result = Enter("cuEventQuery"); result != 0) return result;
  const std::lock_guard lock(mutex_);
  return events_.at(event) == 0 ? 0 : CUDA_ERROR_NOT_READY;
}
CUresult SimpleCuda::MemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  if (const CUresult result = Enter("cuMemcpyAsync"); result != 0) return result;
  const std::lock_guard lock(mutex_);
  Of(stream)->work.push_back([to, from, bytes] { std::memcpy(Pointer(to), Pointer(from), bytes); });
  return 0;
}
// The last copy first: their order is free.
CUresult SimpleCuda::MemcpyBatchAsync(const CUdeviceptr* to, const CUdeviceptr* from, const size_t* lengths,
                                      size_t count, CUmemcpyAttributes*, size_t*, size_t, CUstream stream) {
  if (const CUresult result = Enter("cuMemcpyBatchAsync"); result != 0) return result;
  if (!batch) return CUDA_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(mutex_);
  ++batches_;
  for (size_t i = count; i-- > 0;) {
    Of(stream)->work.push_back(
        [a = to[i], b = from[i], n = lengths[i]] { std::memcpy(Pointer(a), Pointer(b), n); });
  }
  return 0;
}

}  // namespace weightcast::device
