#include "drivers/cuda/load.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

#include "base/strings.h"
#include "drivers/cuda/abi.h"
#include "drivers/cuda/cuda.h"
#include "drivers/cuda/functions.h"

namespace weightcast::drivers {
namespace {

constexpr const char* kSoname = "libcuda.so.1";
constexpr const char* kDriverRemedy =
    "NVIDIA's driver brings this library; install that driver, or start the container with the host's GPUs "
    "(docker run --gpus all)";
// The first version of CUDA in which cuMemcpyBatchAsync has each form.
constexpr int kBatch12 = 12080;
constexpr int kBatch13 = 13000;

/// What we take out of the library. Wanted ones may be null.
struct Symbols {
#define WC_MEMBER(method, symbol, parameters, arguments) CUresult(*method) parameters = nullptr;
  WC_CUDA_NEEDED(WC_MEMBER)
  WC_CUDA_WANTED(WC_MEMBER)
#undef WC_MEMBER
  MemcpyBatchAsync12* batch12 = nullptr;
  MemcpyBatchAsync13* batch13 = nullptr;
};

template <typename Function>
void Look(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

/// cuMemcpyBatchAsync in the form that this driver has: its symbol's type differs from version to version.
void FindBatch(GetProcAddress* find, Symbols& symbols) {
  int version = 0;
  if (symbols.DriverGetVersion(&version) != CUDA_SUCCESS || version < kBatch12) return;
  const int form = version >= kBatch13 ? kBatch13 : kBatch12;
  void* found = nullptr;
  auto status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (find("cuMemcpyBatchAsync", &found, form, 0, &status) != CUDA_SUCCESS) return;
  if (status != CU_GET_PROC_ADDRESS_SUCCESS) return;
  if (form == kBatch13) {
    symbols.batch13 = reinterpret_cast<MemcpyBatchAsync13*>(found);
  } else {
    symbols.batch12 = reinterpret_cast<MemcpyBatchAsync12*>(found);
  }
}

/// Fills `symbols`; returns the first name that is missing, or nothing.
const char* FindAll(void* library, Symbols& symbols) {
  const char* missing = nullptr;
#define WC_NEED(method, symbol, parameters, arguments) \
  Look(library, #symbol, symbols.method);              \
  if (symbols.method == nullptr && missing == nullptr) missing = #symbol;
#define WC_WANT(method, symbol, parameters, arguments) Look(library, #symbol, symbols.method);
  WC_CUDA_NEEDED(WC_NEED)
  WC_CUDA_WANTED(WC_WANT)
#undef WC_NEED
#undef WC_WANT
  GetProcAddress* find = nullptr;
  Look(library, "cuGetProcAddress_v2", find);
  if (find == nullptr && missing == nullptr) missing = "cuGetProcAddress_v2";
  if (missing == nullptr) FindBatch(find, symbols);
  return missing;
}

class LoadedCuda final : public Cuda {
 public:
  explicit LoadedCuda(const Symbols& symbols) : symbols_(symbols) {}

#define WC_CALL(method, symbol, parameters, arguments) \
  CUresult method parameters override { return symbols_.method arguments; }
#define WC_CALL_IF(method, symbol, parameters, arguments)            \
  CUresult method parameters override {                              \
    if (symbols_.method == nullptr) return CUDA_ERROR_NOT_SUPPORTED; \
    return symbols_.method arguments;                                \
  }
  WC_CUDA_NEEDED(WC_CALL)
  WC_CUDA_WANTED(WC_CALL_IF)
#undef WC_CALL
#undef WC_CALL_IF

  // The library's own declaration lacks the consts, in both forms.
  CUresult MemcpyBatchAsync(const CUdeviceptr* to, const CUdeviceptr* from, const size_t* lengths,
                            size_t count, CUmemcpyAttributes* attributes, size_t* firsts,
                            size_t attribute_count, CUstream stream) override {
    auto* const mutable_to = const_cast<CUdeviceptr*>(to);
    auto* const mutable_from = const_cast<CUdeviceptr*>(from);
    auto* const mutable_lengths = const_cast<size_t*>(lengths);
    if (symbols_.batch13 != nullptr) {
      return symbols_.batch13(mutable_to, mutable_from, mutable_lengths, count, attributes, firsts,
                              attribute_count, stream);
    }
    if (symbols_.batch12 == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    size_t failed = 0;
    return symbols_.batch12(mutable_to, mutable_from, mutable_lengths, count, attributes, firsts,
                            attribute_count, &failed, stream);
  }

 private:
  const Symbols symbols_;
};

Result<std::shared_ptr<Cuda>> TableOf(void* library, const char* soname) {
  Symbols symbols;
  if (const char* const missing = FindAll(library, symbols); missing != nullptr) {
    return Error(Code::kUnavailable, soname, " has no ", missing,
                 ": it is older than CUDA 12.0; install NVIDIA's driver 525 or newer");
  }
  return std::shared_ptr<Cuda>(std::make_shared<LoadedCuda>(symbols));
}

Result<std::shared_ptr<Cuda>> LoadAllowed(CudaUse use) {
  const char* const named = std::getenv(kCudaLibraryVariable);
  if (named != nullptr && *named != '\0') {
    return LoadCudaFrom(named,
                        "WEIGHTCAST_CUDA_LIBRARY names it; give the path of a libcuda.so.1, or unset it");
  }
  if (void* const library = dlopen(kSoname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD); library != nullptr) {
    return TableOf(library, kSoname);
  }
  if (use == CudaUse::kAsked) return LoadCudaFrom(kSoname, kDriverRemedy);
  return Error(Code::kUnavailable, "this process does not use CUDA: ", kSoname,
               " is not loaded; put something on a GPU first, for example with torch");
}

}  // namespace

// The library is never closed: it holds threads and atfork handlers.
Result<std::shared_ptr<Cuda>> LoadCudaFrom(const char* soname, const char* remedy) {
  void* const library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return Error(Code::kUnavailable, soname, " cannot be loaded (",
                 reason != nullptr ? reason : "no reason given", "): ", remedy);
  }
  return TableOf(library, soname);
}

// Only what was loaded is kept: whoever uses no GPU yet may do so later.
Result<std::shared_ptr<Cuda>> LoadCuda(CudaUse use) {
  static std::mutex mutex;
  static std::shared_ptr<Cuda> loaded;
  const std::lock_guard lock(mutex);
  if (loaded != nullptr) return loaded;
  WC_ASSIGN_OR_RETURN(loaded, LoadAllowed(use));
  return loaded;
}

}  // namespace weightcast::drivers
