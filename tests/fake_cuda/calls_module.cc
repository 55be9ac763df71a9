// Modules and kernels.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "fake_cuda/calls.h"
#include "fake_cuda/process.h"

namespace weightcast::fake_cuda {
namespace {

constexpr uint32_t kMostThreads = 1024;

/// The newest PTX that a driver takes: 8.0 came with CUDA 12.0, 9.0 with 13.0.
int NewestPtx(int driver) {
  const int minor = driver % 1000 / 10;
  return driver / 1000 * 10 - 40 + minor;
}

bool IsKernelOf(const Process& process, uint64_t module, uint32_t kernel) {
  return std::ranges::any_of(process.functions, [&](const auto& each) {
    return each.second.module == module && each.second.kernel == kernel;
  });
}

bool Runs(const Process& process, uint64_t module) {
  for (const Ring& ring : process.link->area().rings) {
    const uint64_t tail = ring.tail.load(std::memory_order_acquire);
    for (uint64_t i = ring.head.load(std::memory_order_acquire); i < tail; ++i) {
      const Op& op = ring.ops[i % kDepth];
      if (op.kind == OpKind::kKernel && IsKernelOf(process, module, op.kernel)) return true;
    }
  }
  return false;
}

void CheckSize(Call& call, const uint32_t* grid, const uint32_t* block) {
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (grid[i] == 0 || block[i] == 0) call.Wrong("a launch of no threads");
    threads *= block[i];
  }
  if (threads > kMostThreads) call.Wrong("a block of " + std::to_string(threads) + " threads");
}

/// Copies the parameters, whose sizes the PTX has.
void TakeParameters(Call& call, const Function& function, void** parameters, std::byte* to) {
  size_t used = 0;
  for (size_t i = 0; i < function.entry->sizes.size(); ++i) {
    const size_t size = function.entry->sizes[i];
    if (parameters == nullptr || parameters[i] == nullptr) {
      call.Wrong("parameter " + std::to_string(i) + " of " + function.entry->name + " is missing");
    }
    if (used + size > kParameters) call.Wrong("the parameters are larger than 4096 bytes");
    std::memcpy(to + used, parameters[i], size);
    used += size;
  }
}

}  // namespace
}  // namespace weightcast::fake_cuda

namespace weightcast::drivers {
using namespace fake_cuda;  // NOLINT: this is its C side.
extern "C" {

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int, CUjit_option*, void**) {
  Call call("cuModuleLoadDataEx", kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  Ptx ptx;
  if (!ParsePtx(static_cast<const char*>(image), ptx)) return CUDA_ERROR_INVALID_IMAGE;
  if (ptx.version > NewestPtx(process.config.driver)) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  if (ptx.target > process.config.cc) return CUDA_ERROR_INVALID_PTX;
  const uint64_t number = process.NewObject();
  process.modules[number] = {.device = call.device(), .entries = ptx.entries};
  *module = reinterpret_cast<CUmodule>(number);
  return kOk;
}

CUresult cuModuleUnload(CUmodule module) {
  Call call("cuModuleUnload", kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const auto number = reinterpret_cast<uint64_t>(module);
  if (!process.modules.contains(number)) call.Wrong("the module was unloaded, or never was one");
  if (Runs(process, number)) call.Wrong("a kernel of the module still runs");
  std::erase_if(process.functions, [&](const auto& each) { return each.second.module == number; });
  process.modules.erase(number);
  return kOk;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  Call call("cuModuleGetFunction", kPlain);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const auto found = process.modules.find(reinterpret_cast<uint64_t>(module));
  if (found == process.modules.end()) call.Wrong("the module was unloaded, or never was one");
  for (const PtxEntry& entry : found->second.entries) {
    if (entry.name != name) continue;
    const int kernel = FindKernel(name);
    if (kernel < 0) call.Wrong(std::string("kernel ") + name + " has no host version");
    const uint64_t number = process.NewObject();
    process.functions[number] = {
        .module = found->first, .entry = &entry, .kernel = static_cast<uint32_t>(kernel)};
    *function = reinterpret_cast<CUfunction>(number);
    return kOk;
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int,
                        CUstream stream, void** parameters, void** extra) {
  Call call("cuLaunchKernel", kPlain);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const auto found = process.functions.find(reinterpret_cast<uint64_t>(function));
  if (found == process.functions.end()) call.Wrong("the function's module was unloaded, or it never was one");
  if (process.modules.at(found->second.module).device != call.device()) {
    call.Wrong("the function is of another context than the current one");
  }
  if (extra != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  StreamObject& target = call.Stream(stream);
  if (target.captured) call.Wrong("the stream is being captured");
  Op op{.kind = OpKind::kKernel,
        .slot = static_cast<uint32_t>(target.launches % kLaunches),
        .kernel = found->second.kernel,
        .grid = {grid_x, grid_y, grid_z},
        .block = {block_x, block_y, block_z}};
  CheckSize(call, op.grid, op.block);
  Ring& ring = process.link->area().rings[target.slot];
  WaitFor(call, process, [&] {
    return target.launches - ring.launched.load(std::memory_order_acquire) < kLaunches ||
           process.LostOf(call.device()) != 0;
  });
  TakeParameters(call, found->second, parameters, ring.parameters[op.slot]);
  ++target.launches;
  Push(call, process, target, op);
  return kOk;  // What the kernel does wrong, the next call says.
}

}  // extern "C"
}  // namespace weightcast::drivers
