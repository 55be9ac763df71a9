#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

/// The few driver calls that kernels_on_gpu needs. Any error ends the program.
namespace gpu {

using Handle = void*;

/// A function of libcuda.so.1.
inline void* Symbol(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "no driver: %s\n", dlerror());
    std::exit(2);
  }
  void* const found = dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "libcuda.so.1 has no %s\n", name);
    std::exit(2);
  }
  return found;
}

template <typename... Arguments>
void Call(const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<int (*)(Arguments...)>(Symbol(name));
  const int error = function(arguments...);
  if (error == 0) return;
  const char* text = "?";
  reinterpret_cast<int (*)(int, const char**)>(Symbol("cuGetErrorString"))(error, &text);
  std::fprintf(stderr, "%s: error %d, %s\n", name, error, text);
  std::exit(2);
}

/// Makes the primary context of the first GPU current; returns its name.
inline std::string Start() {
  Call("cuInit", 0U);
  int device = 0;
  Call("cuDeviceGet", &device, 0);
  Handle context = nullptr;
  Call("cuDevicePrimaryCtxRetain", &context, device);
  Call("cuCtxSetCurrent", context);
  char name[128] = {};
  Call("cuDeviceGetName", static_cast<char*>(name), int{sizeof name}, device);
  return name;
}

inline uint64_t Allocate(size_t bytes) {
  uint64_t address = 0;
  Call("cuMemAlloc_v2", &address, bytes);
  return address;
}
inline void Free(uint64_t address) { Call("cuMemFree_v2", address); }

/// Host memory that copies can use directly.
inline uint8_t* AllocatePinned(size_t bytes) {
  void* address = nullptr;
  Call("cuMemAllocHost_v2", &address, bytes);
  return static_cast<uint8_t*>(address);
}

inline void Upload(uint64_t target, const void* source, size_t bytes) {
  Call("cuMemcpyHtoD_v2", target, source, bytes);
}
inline void Download(void* target, uint64_t source, size_t bytes) {
  Call("cuMemcpyDtoH_v2", target, source, bytes);
}
inline void Wait() { Call("cuCtxSynchronize"); }

inline Handle LoadModule(const char* ptx) {
  Handle module = nullptr;
  Call("cuModuleLoadDataEx", &module, static_cast<const void*>(ptx), 0U, static_cast<int*>(nullptr),
       static_cast<void**>(nullptr));
  return module;
}
inline Handle Function(Handle module, const char* name) {
  Handle function = nullptr;
  Call("cuModuleGetFunction", &function, module, name);
  return function;
}

inline void Launch(Handle function, uint32_t blocks, uint32_t threads, void* parameter) {
  void* parameters[] = {parameter};
  Call("cuLaunchKernel", function, blocks, 1U, 1U, threads, 1U, 1U, 0U, Handle{nullptr},
       static_cast<void**>(parameters), static_cast<void**>(nullptr));
}

/// Seconds on the GPU between its construction and Stop.
class Clock {
 public:
  Clock() {
    Call("cuEventCreate", &begin_, 0U);
    Call("cuEventCreate", &end_, 0U);
    Call("cuEventRecord", begin_, Handle{nullptr});
  }
  double Stop() {
    float milliseconds = 0;
    Call("cuEventRecord", end_, Handle{nullptr});
    Call("cuEventSynchronize", end_);
    Call("cuEventElapsedTime", &milliseconds, begin_, end_);
    Call("cuEventDestroy_v2", begin_);
    Call("cuEventDestroy_v2", end_);
    return milliseconds / 1e3;
  }

 private:
  Handle begin_ = nullptr;
  Handle end_ = nullptr;
};

}  // namespace gpu
