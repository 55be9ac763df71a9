#include "device/gpus.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/forks.h"
#include "base/strings.h"
#include "device/error.h"

namespace weightcast::device {
namespace {

Status Forked() {
  return {Code::kInternal,
          "this process was forked from one that uses a GPU, and CUDA works in the parent only; start "
          "processes by spawn"};
}

Result<Gpu> Look(drivers::Cuda& cuda, int ordinal) {
  Gpu gpu;
  gpu.ordinal = ordinal;
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(cuda, DeviceGet, &gpu.handle, ordinal));
  drivers::CUuuid uuid{};
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(cuda, DeviceGetUuid, &uuid, gpu.handle));
  static_assert(sizeof uuid == sizeof gpu.uuid);
  std::memcpy(gpu.uuid.data(), &uuid, sizeof uuid);
  std::array<char, 256> name{};
  WC_RETURN_IF_ERROR(
      WC_CALL_DRIVER(cuda, DeviceGetName, name.data(), static_cast<int>(name.size()), gpu.handle));
  gpu.name = name.data();
  return gpu;
}

}  // namespace

std::string UuidText(const DeviceUuid& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned>(uuid[i]));
    text += digits.data();
  }
  return text;
}

Context::Context(std::shared_ptr<drivers::Cuda> cuda, const Gpu& gpu, drivers::CUcontext raw)
    : cuda_(std::move(cuda)), gpu_(gpu), raw_(raw), forks_(ForkCount()) {}

Context::~Context() {
  if (!forked()) cuda_->DevicePrimaryCtxRelease(gpu_.handle);
}

bool Context::forked() const { return forks_ != ForkCount(); }

ContextScope::ContextScope(const Context& context)
    : context_(context), outer_(std::exchange(DeviceInScope(), context.ordinal())) {
  if (context.forked()) {
    status_ = Forked();
    return;
  }
  drivers::Cuda& cuda = context.cuda();
  status_ = WC_CALL_DRIVER(cuda, CtxPushCurrent, context.raw());
  if (!status_.ok()) return;
  mode_ = drivers::CU_STREAM_CAPTURE_MODE_RELAXED;
  cuda.ThreadExchangeStreamCaptureMode(&mode_);
}

ContextScope::~ContextScope() {
  DeviceInScope() = outer_;
  if (!status_.ok() || context_.forked()) return;
  drivers::Cuda& cuda = context_.cuda();
  cuda.ThreadExchangeStreamCaptureMode(&mode_);
  drivers::CUcontext popped{};
  cuda.CtxPopCurrent(&popped);
}

Gpus::Gpus(std::shared_ptr<drivers::Cuda> cuda, std::vector<Gpu> gpus)
    : cuda_(std::move(cuda)), gpus_(std::move(gpus)), forks_(ForkCount()) {}

Result<std::shared_ptr<Gpus>> Gpus::Open(const Settings& settings, drivers::CudaUse use) {
  if (settings.gpu == "off")
    return Status(Code::kUnavailable, "setting gpu is 'off', so this process uses no GPU; set it to auto");
  WC_ASSIGN_OR_RETURN(auto cuda, drivers::LoadCuda(use));
  return Create(std::move(cuda));
}

Result<std::shared_ptr<Gpus>> Gpus::Create(std::shared_ptr<drivers::Cuda> cuda) {
  CountForks();
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(*cuda, Init, 0));
  int count = 0;
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(*cuda, DeviceGetCount, &count));
  if (count == 0)
    return Status(Code::kUnavailable,
                  "the CUDA driver shows this process no device; check CUDA_VISIBLE_DEVICES and nvidia-smi");
  std::vector<Gpu> gpus;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    WC_ASSIGN_OR_RETURN(Gpu gpu, Look(*cuda, ordinal));
    gpus.push_back(std::move(gpu));
  }
  return std::shared_ptr<Gpus>(new Gpus(std::move(cuda), std::move(gpus)));
}

std::optional<int> Gpus::OrdinalOf(const DeviceUuid& uuid) const {
  const auto found = std::ranges::find(gpus_, uuid, &Gpu::uuid);
  if (found == gpus_.end()) return std::nullopt;
  return found->ordinal;
}

Status Gpus::Usable() const { return forks_ == ForkCount() ? Status::Ok() : Forked(); }

Result<std::shared_ptr<const Context>> Gpus::Retain(int ordinal) const {
  WC_RETURN_IF_ERROR(Usable());
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= gpus_.size()) {
    return Error(Code::kInvalidArgument, "device ", ordinal, " does not exist: this process sees ",
                 gpus_.size(), " devices, numbered from 0; check CUDA_VISIBLE_DEVICES");
  }
  const Gpu& gpu = gpus_[static_cast<size_t>(ordinal)];
  unsigned int flags = 0;
  int active = 0;
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(*cuda_, DevicePrimaryCtxGetState, gpu.handle, &flags, &active));
  if (active == 0) {
    return Error(Code::kUnavailable, "device ", ordinal,
                 " has no CUDA context in this process; use it first, for example by ",
                 "torch.cuda.init() and a tensor there");
  }
  drivers::CUcontext raw{};
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(*cuda_, DevicePrimaryCtxRetain, &raw, gpu.handle));
  return std::shared_ptr<const Context>(std::make_shared<Context>(cuda_, gpu, raw));
}

}  // namespace weightcast::device
