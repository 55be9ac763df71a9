#include "drivers/nvml/load.h"

#include <dlfcn.h>

#include <array>
#include <string_view>

#include "base/strings.h"
#include "drivers/nvml/abi.h"

namespace weightcast::drivers {
namespace {

using namespace nvml;

constexpr const char* kSoname = "libnvidia-ml.so.1";
constexpr std::string_view kRemedy =
    "NVIDIA's driver brings this library; check with nvidia-smi that the driver works";
constexpr uint64_t kKib = 1024;

struct Symbols {
  Init* init = nullptr;
  ErrorString* error_string = nullptr;
  DeviceGetCount* count = nullptr;
  DeviceGetHandleByIndex* handle = nullptr;
  DeviceGetFieldValues* values = nullptr;
};

template <typename Function>
bool Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

bool FindAll(void* library, Symbols& symbols) {
  return Find(library, "nvmlInit_v2", symbols.init) &&
         Find(library, "nvmlErrorString", symbols.error_string) &&
         Find(library, "nvmlDeviceGetCount_v2", symbols.count) &&
         Find(library, "nvmlDeviceGetHandleByIndex_v2", symbols.handle) &&
         Find(library, "nvmlDeviceGetFieldValues", symbols.values);
}

class LoadedNvml final : public Nvml {
 public:
  explicit LoadedNvml(const Symbols& symbols) : symbols_(symbols) {}

  Result<uint32_t> Gpus() override {
    uint32_t count = 0;
    const Return result = symbols_.count(&count);
    if (result != kSuccess) return Failed("nvmlDeviceGetCount", result);
    return count;
  }

  Result<NvlinkBytes> NvlinkOf(uint32_t gpu) override {
    Device device = nullptr;
    if (const Return result = symbols_.handle(gpu, &device); result != kSuccess)
      return Failed("nvmlDeviceGetHandleByIndex", result);
    std::array<FieldValue, 2> fields{};
    fields[0] = {.field = kNvlinkDataSent, .scope = kAllLinks};
    fields[1] = {.field = kNvlinkDataReceived, .scope = kAllLinks};
    const Return asked = symbols_.values(device, static_cast<int>(fields.size()), fields.data());
    if (asked != kSuccess) return Failed("nvmlDeviceGetFieldValues", asked);
    for (const FieldValue& field : fields) {
      if (field.result != kSuccess) return Failed("NVLink's counters", field.result);
    }
    return NvlinkBytes{.sent = fields[0].value * kKib, .received = fields[1].value * kKib};
  }

  [[nodiscard]] Status Failed(const char* what, Return result) const {
    const char* const text = symbols_.error_string(result);
    return Error(Code::kUnavailable, "NVIDIA's library gives no counts of NVLink: ", what, ": ",
                 text != nullptr ? text : "an error without a text",
                 result == kNotSupported
                     ? "; this GPU or its driver counts none, and nothing needs to be done"
                     : "; check with nvidia-smi that the driver works");
  }

 private:
  Symbols symbols_;
};

}  // namespace

// The library is never closed: it may hold threads.
Result<std::shared_ptr<Nvml>> LoadNvmlFrom(const char* soname) {
  void* library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return Error(Code::kUnavailable, soname, " cannot be loaded (",
                 reason != nullptr ? reason : "no reason given", "): ", kRemedy);
  }
  Symbols symbols;
  if (!FindAll(library, symbols)) {
    dlclose(library);
    return Error(Code::kUnavailable, soname,
                 " is too old to count NVLink's bytes; install a newer driver of NVIDIA");
  }
  auto loaded = std::make_shared<LoadedNvml>(symbols);
  if (const Return result = symbols.init(); result != kSuccess) return loaded->Failed("nvmlInit", result);
  return std::shared_ptr<Nvml>(std::move(loaded));
}

Result<std::shared_ptr<Nvml>> LoadNvml() {
  static const Result<std::shared_ptr<Nvml>> loaded = LoadNvmlFrom(kSoname);
  return loaded;
}

}  // namespace weightcast::drivers
