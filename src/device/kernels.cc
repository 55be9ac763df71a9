#include "device/kernels.h"

#include <algorithm>
#include <cstring>

#include "device/attribute.h"
#include "device/error.h"
#include "kernels/ptx.h"
#include "trace/metrics.h"

namespace weightcast::device {
namespace {

constexpr size_t kMostSums = 256;  ///< Digests in a batch.
constexpr uint32_t kDigestThreads = 256;
constexpr uint64_t kMostDigestBlocks = 1024;

Launch DigestLaunch(kernels::DigestParameters box, uint64_t sums) {
  constexpr uint64_t kWarps = kDigestThreads / kernels::kWarp;
  box.sums = sums;
  return {.kernel = "digest",
          .blocks = static_cast<uint32_t>(
              std::clamp<uint64_t>((box.cells + kWarps - 1) / kWarps, 1, kMostDigestBlocks)),
          .threads = kDigestThreads,
          .parameters = box};
}

/// The text for the newest GPUs that this device is one of.
Result<std::string_view> TextFor(const Context& context) {
  WC_ASSIGN_OR_RETURN(const int major,
                      AttributeOf(context, drivers::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  return major >= 9 ? kernels::PtxForSm90() : kernels::PtxForSm80();
}

}  // namespace

Result<std::shared_ptr<Kernels>> Kernels::Load(std::shared_ptr<const Context> context) {
  std::shared_ptr<Kernels> made(new Kernels(std::move(context)));
  WC_RETURN_IF_ERROR(made->LoadModule());
  return made;
}

Status Kernels::LoadModule() {
  const ContextScope scope(*context_);
  WC_RETURN_IF_ERROR(scope.status());
  WC_ASSIGN_OR_RETURN(const std::string_view text, TextFor(*context_));
  drivers::Cuda& cuda = context_->cuda();
  return WC_CALL_DRIVER(cuda, ModuleLoadDataEx, &module_, text.data(), 0, nullptr, nullptr);
}

Kernels::~Kernels() {
  const ContextScope scope(*context_);
  if (!scope.status().ok()) return;
  drivers::Cuda& cuda = context_->cuda();
  for (const Lane& lane : free_) {
    cuda.EventDestroy(lane.event);
    cuda.StreamDestroy(lane.stream);
    if (lane.sums != 0) cuda.MemFree(lane.sums);
    if (lane.landed != nullptr) cuda.MemFreeHost(lane.landed);
  }
  if (module_ != drivers::CUmodule{}) cuda.ModuleUnload(module_);
}

Status Kernels::Run(std::span<const Launch> launches) {
  static trace::Counter& runs = trace::CounterNamed("gpu.kernels");
  const ContextScope scope(*context_);
  WC_RETURN_IF_ERROR(scope.status());
  WC_ASSIGN_OR_RETURN(const Lane lane, TakeLane());
  Status begun;
  for (const Launch& launch : launches) {
    if (begun.ok()) begun = Begin(launch, lane.stream);
  }
  // Also after a failure: what was begun still runs.
  const Status over = Await(lane);
  runs.Add(launches.size());
  GiveLane(lane);
  return begun.ok() ? over : begun;
}

Status Kernels::Digest(std::span<const kernels::DigestParameters> boxes,
                       std::span<kernels::DigestSums> sums) {
  const ContextScope scope(*context_);
  WC_RETURN_IF_ERROR(scope.status());
  WC_ASSIGN_OR_RETURN(Lane lane, TakeLane());
  Status status = OpenSums(lane);
  for (size_t at = 0; at < boxes.size() && status.ok(); at += kMostSums) {
    const size_t count = std::min(kMostSums, boxes.size() - at);
    status = DigestBatch(lane, boxes.subspan(at, count), sums.subspan(at, count));
  }
  GiveLane(lane);
  return status;
}

Status Kernels::OpenSums(Lane& lane) {
  constexpr size_t kBytes = kMostSums * sizeof(kernels::DigestSums);
  drivers::Cuda& cuda = context_->cuda();
  if (lane.sums == 0) WC_RETURN_IF_ERROR(WC_CALL_DRIVER(cuda, MemAlloc, &lane.sums, kBytes));
  if (lane.landed != nullptr) return Status::Ok();
  return WC_CALL_DRIVER(cuda, MemHostAlloc, &lane.landed, kBytes, drivers::CU_MEMHOSTALLOC_PORTABLE);
}

/// `sums` has them only once all are over.
Status Kernels::DigestBatch(const Lane& lane, std::span<const kernels::DigestParameters> boxes,
                            std::span<kernels::DigestSums> sums) {
  static trace::Counter& runs = trace::CounterNamed("gpu.kernels");
  drivers::Cuda& cuda = context_->cuda();
  Status begun = WC_CALL_DRIVER(cuda, MemsetD8Async, lane.sums, 0, sums.size_bytes(), lane.stream);
  for (size_t i = 0; i < boxes.size() && begun.ok(); ++i)
    begun = Begin(DigestLaunch(boxes[i], lane.sums + i * sizeof(kernels::DigestSums)), lane.stream);
  const auto landed = reinterpret_cast<drivers::CUdeviceptr>(lane.landed);
  if (begun.ok())
    begun = WC_CALL_DRIVER(cuda, MemcpyAsync, landed, lane.sums, sums.size_bytes(), lane.stream);
  // Also after a failure: what was begun still runs.
  const Status over = Await(lane);
  runs.Add(boxes.size());
  std::memcpy(sums.data(), lane.landed, sums.size_bytes());
  return begun.ok() ? over : begun;
}

Result<Kernels::Lane> Kernels::TakeLane() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const Lane lane = free_.back();
      free_.pop_back();
      return lane;
    }
  }
  drivers::Cuda& cuda = context_->cuda();
  int least = 0;
  int greatest = 0;  // The engine waits for it: before the user's kernels, which are long.
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(cuda, CtxGetStreamPriorityRange, &least, &greatest));
  Lane lane;
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(cuda, StreamCreateWithPriority, &lane.stream,
                                    drivers::CU_STREAM_NON_BLOCKING, greatest));
  // The waiting thread sleeps.
  constexpr unsigned int kFlags = drivers::CU_EVENT_DISABLE_TIMING | drivers::CU_EVENT_BLOCKING_SYNC;
  const Status made = WC_CALL_DRIVER(cuda, EventCreate, &lane.event, kFlags);
  if (made.ok()) return lane;
  cuda.StreamDestroy(lane.stream);
  return made;
}

void Kernels::GiveLane(const Lane& lane) {
  const std::lock_guard lock(mutex_);
  free_.push_back(lane);
}

Result<drivers::CUfunction> Kernels::FunctionOf(const char* name) {
  const std::lock_guard lock(mutex_);
  const auto found = functions_.find(name);
  if (found != functions_.end()) return found->second;
  drivers::Cuda& cuda = context_->cuda();
  drivers::CUfunction function{};
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(cuda, ModuleGetFunction, &function, module_, name));
  functions_.emplace(name, function);
  return function;
}

Status Kernels::Begin(const Launch& launch, drivers::CUstream stream) {
  WC_ASSIGN_OR_RETURN(const drivers::CUfunction function, FunctionOf(launch.kernel));
  auto parameters = launch.parameters;
  void* at = std::visit([](auto& each) { return static_cast<void*>(&each); }, parameters);
  drivers::Cuda& cuda = context_->cuda();
  return WC_CALL_DRIVER(cuda, LaunchKernel, function, launch.blocks, 1, 1, launch.threads, 1, 1, 0, stream,
                        &at, nullptr);
}

Status Kernels::Await(const Lane& lane) {
  drivers::Cuda& cuda = context_->cuda();
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(cuda, EventRecord, lane.event, lane.stream));
  return WC_CALL_DRIVER(cuda, EventSynchronize, lane.event);
}

Result<std::shared_ptr<Kernels>> KernelLoader::Get() {
  const std::lock_guard lock(mutex_);
  if (loaded_ == nullptr && failure_.ok()) {
    auto kernels = Kernels::Load(context_);
    if (kernels.ok()) loaded_ = std::move(*kernels);
    failure_ = kernels.status();
  }
  if (loaded_ == nullptr) return failure_;
  return loaded_;
}

Result<std::shared_ptr<Kernels>> KernelLoader::Loaded() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return std::shared_ptr<Kernels>();
  if (!failure_.ok()) return failure_;
  return loaded_;
}

}  // namespace weightcast::device
