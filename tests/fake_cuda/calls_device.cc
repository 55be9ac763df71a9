// cuInit, devices, contexts, errors.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "fake_cuda/calls.h"
#include "fake_cuda/process.h"

namespace weightcast::fake_cuda {
namespace {

constexpr const char* kVariable = "FAKE_CUDA";

std::string ConfigText(const Process& process) {
  if (!process.config_text.empty()) return process.config_text;
  const char* const text = std::getenv(kVariable);
  return text != nullptr ? text : "";
}

/// A CUcontext is the number of its device, recognisable.
CUcontext ContextOf(int device) { return reinterpret_cast<CUcontext>(0x7FC0'0000'0000 + 16 * (device + 1)); }
int DeviceOf(CUcontext context) {
  return static_cast<int>((reinterpret_cast<uint64_t>(context) - 0x7FC0'0000'0000) / 16) - 1;
}

bool IsDevice(const Process& process, int device) {
  return device >= 0 && device < static_cast<int>(process.visible.size());
}

int Attribute(const Process& process, CUdevice_attribute attribute, int gpu) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:  // Also without IMEX: then cuMemCreate refuses.
      return 1;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
      return process.config.writes ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return 0x10 + gpu;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return process.config.cc / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return process.config.cc % 10;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
      return process.config.ordering;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
      return process.config.dmabuf ? 1 : 0;
    default:
      return 0;
  }
}

void* SymbolOf(const std::string& name) {
  Dl_info about{};
  dladdr(reinterpret_cast<void*>(&cuInit), &about);
  void* const library = dlopen(about.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  void* const newest = dlsym(library, (name + "_v2").c_str());
  return newest != nullptr ? newest : dlsym(library, name.c_str());
}

/// What a lost context had is gone. A living one must have nothing left.
void DropContext(Call& call, Process& process, int device) {
  const auto mine = [&](const auto& each) { return each.second.device == device; };
  const bool lost = process.LostOf(device) != 0;
  for (const uint64_t stream : process.contexts.at(device).default_streams) {
    process.link->area().rings[process.streams.at(stream).slot].state.store(StreamState::kClosing);
    process.streams.erase(stream);
  }
  const auto left = [&](const auto& map) { return std::count_if(map.begin(), map.end(), mine); };
  const auto memory = std::count_if(process.ranges.begin(), process.ranges.end(), [&](const auto& each) {
    return mine(each) && each.second.kind != MemoryKind::kCreated;
  });
  const auto objects =
      memory + left(process.streams) + left(process.events) + left(process.pinned) + left(process.modules);
  if (objects != 0 && !lost) {
    call.Wrong("the context is released for the last time while " + std::to_string(objects) +
               " objects of it live: " + std::to_string(memory) + " memory, " +
               std::to_string(left(process.streams)) + " streams, " + std::to_string(left(process.events)) +
               " events, " + std::to_string(left(process.pinned)) + " pinned ranges, " +
               std::to_string(left(process.modules)) + " modules");
  }
  if (lost) process.DropDevice(device);
  process.contexts.erase(device);
}

}  // namespace
}  // namespace weightcast::fake_cuda

namespace weightcast::drivers {
using namespace fake_cuda;  // NOLINT: this is its C side.
extern "C" {

CUresult cuInit(unsigned int flags) {
  Call call("cuInit", kBeforeInit);
  Process& process = TheProcess();
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (process.link != nullptr) return kOk;
  process.config = Config::Parse(ConfigText(process));
  process.visible = VisibleDevices(process.config.gpus);
  if (process.visible.empty()) return CUDA_ERROR_NO_DEVICE;
  process.link = process.config.dir.empty() ? InlineLink(process.config) : SocketLink(process.config);
  static const int once = pthread_atfork(nullptr, nullptr, [] {
    if (TheProcess().link != nullptr) TheProcess().forked = true;
  });
  (void)once;
  return kOk;
}

CUresult cuDriverGetVersion(int* version) {
  Call call("cuDriverGetVersion", kBeforeInit);
  *version = Config::Parse(ConfigText(TheProcess())).driver;
  return kOk;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  Call call("cuDeviceGet", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  if (!IsDevice(TheProcess(), ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return kOk;
}

CUresult cuDeviceGetCount(int* count) {
  Call call("cuDeviceGetCount", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  *count = static_cast<int>(TheProcess().visible.size());
  return kOk;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  Call call("cuDeviceGetName", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  if (!IsDevice(TheProcess(), device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(length), "Fake GPU %d", TheProcess().GpuOf(device));
  return kOk;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  Call call("cuDeviceGetUuid", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  if (!IsDevice(process, device)) return CUDA_ERROR_INVALID_DEVICE;
  const uint64_t machine = std::hash<std::string>{}(process.config.dir);
  std::memcpy(uuid->bytes, &machine, sizeof machine);
  std::memcpy(uuid->bytes + 8, "fakegpu", 7);
  uuid->bytes[15] = static_cast<char>(process.GpuOf(device));
  return kOk;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  Call call("cuDeviceGetAttribute", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  if (!IsDevice(TheProcess(), device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = Attribute(TheProcess(), attribute, TheProcess().GpuOf(device));
  return kOk;
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  Call call("cuDeviceGetPCIBusId", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  if (!IsDevice(TheProcess(), device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", 0x10 + TheProcess().GpuOf(device));
  return kOk;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  Call call("cuDeviceCanAccessPeer", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  if (!IsDevice(process, device) || !IsDevice(process, peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer && process.Reaches(process.GpuOf(device), process.GpuOf(peer)) ? 1 : 0;
  return kOk;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to) {
  Call call("cuDeviceGetP2PAttribute", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  if (!IsDevice(process, from) || !IsDevice(process, to) || from == to) return CUDA_ERROR_INVALID_DEVICE;
  const bool reaches = process.Reaches(process.GpuOf(from), process.GpuOf(to));
  *value = reaches && attribute != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 1 : 0;
  return kOk;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  Call call("cuDevicePrimaryCtxGetState", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  if (!IsDevice(TheProcess(), device)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = TheProcess().contexts.contains(device) ? 1 : 0;
  return kOk;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  Call call("cuDevicePrimaryCtxRetain", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  if (!IsDevice(process, device)) return CUDA_ERROR_INVALID_DEVICE;
  if (const int lost = process.LostOf(device); lost != 0) return lost;
  Context& mine = process.contexts[device];
  mine.device = device;
  ++mine.references;
  *context = ContextOf(device);
  return kOk;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  Call call("cuDevicePrimaryCtxRelease", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const auto found = process.contexts.find(device);
  if (found == process.contexts.end()) call.Wrong("the context was released more often than retained");
  if (--found->second.references == 0) DropContext(call, process, device);
  return kOk;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  Call call("cuCtxPushCurrent", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  if (!TheProcess().contexts.contains(DeviceOf(context))) call.Wrong("the context was released");
  ThisThread().stack.push_back(DeviceOf(context));
  return kOk;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  Call call("cuCtxPopCurrent", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  if (call.device() < 0) call.Wrong("there is no context to pop");
  if (context != nullptr) *context = ContextOf(call.device());
  ThisThread().stack.pop_back();
  return kOk;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  Call call("cuCtxGetCurrent", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  *context = call.device() < 0 ? nullptr : ContextOf(call.device());
  return kOk;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Call call("cuCtxGetStreamPriorityRange", kPlain);
  if (call.result() != kOk) return call.result();
  *least = 0;
  *greatest = -5;
  return kOk;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  Call call("cuCtxEnablePeerAccess", kPlain);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const int other = DeviceOf(peer);
  if (!process.contexts.contains(other)) call.Wrong("the peer's context was released");
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (other == call.device()) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  if (!process.Reaches(process.GpuOf(call.device()), process.GpuOf(other))) {
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  uint32_t& peers = process.contexts.at(call.device()).peers;
  if ((peers >> other & 1) != 0) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  peers |= 1U << other;
  return kOk;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  Call call("cuThreadExchangeStreamCaptureMode", kNoContext | kEvenIfLost);
  if (call.result() != kOk) return call.result();
  if (*mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::swap(*mode, ThisThread().mode);
  return kOk;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t,
                             CUdriverProcAddressQueryResult* status) {
  *function = nullptr;
  const int driver = Config::Parse(ConfigText(TheProcess())).driver;
  if (version > driver) return CUDA_ERROR_INVALID_VALUE;
  CUdriverProcAddressQueryResult result = CU_GET_PROC_ADDRESS_SUCCESS;
  if (std::strcmp(symbol, "cuMemcpyBatchAsync") != 0) {
    *function = SymbolOf(symbol);
    if (*function == nullptr) result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  } else if (driver < 12080) {
    result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  } else if (version < 12080) {
    result = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  } else {
    *function = version >= 13000 ? reinterpret_cast<void*>(&cuMemcpyBatchAsync_v2)
                                 : reinterpret_cast<void*>(&cuMemcpyBatchAsync);
  }
  if (status != nullptr) *status = result;
  return *function != nullptr || status != nullptr ? kOk : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"
}  // namespace weightcast::drivers
