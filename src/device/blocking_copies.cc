#include "device/blocking_copies.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "device/error.h"

namespace weightcast::device {
namespace {

constexpr size_t kBlock = size_t{4} << 20;

drivers::CUdeviceptr Number(const void* address) { return reinterpret_cast<drivers::CUdeviceptr>(address); }

/// Copies within a device need none.
Status Pin(drivers::Cuda& cuda, void*& block) {
  if (block != nullptr) return Status::Ok();
  return WC_CALL_DRIVER(cuda, MemHostAlloc, &block, kBlock, drivers::CU_MEMHOSTALLOC_PORTABLE);
}

}  // namespace

Result<std::shared_ptr<BlockingCopies>> BlockingCopies::Create(std::shared_ptr<const Context> context) {
  std::shared_ptr<BlockingCopies> made(new BlockingCopies(std::move(context)));
  WC_RETURN_IF_ERROR(made->Open());
  return made;
}

Status BlockingCopies::Open() {
  const ContextScope scope(*context_);
  WC_RETURN_IF_ERROR(scope.status());
  drivers::Cuda& cuda = context_->cuda();
  const auto check = [&](drivers::CUresult result, std::string_view call) {
    return DriverStatus(cuda, result, call);
  };
  WC_RETURN_IF_ERROR(check(cuda.StreamCreateWithPriority(&stream_, drivers::CU_STREAM_NON_BLOCKING, 0),
                           "cuStreamCreateWithPriority"));
  return check(cuda.EventCreate(&event_, drivers::CU_EVENT_DISABLE_TIMING), "cuEventCreate");
}

BlockingCopies::~BlockingCopies() {
  const ContextScope scope(*context_);
  if (!scope.status().ok()) return;
  drivers::Cuda& cuda = context_->cuda();
  if (event_ != nullptr) cuda.EventDestroy(event_);
  if (stream_ != nullptr) cuda.StreamDestroy(stream_);
  if (pinned_ != nullptr) cuda.MemFreeHost(pinned_);
}

Status BlockingCopies::Begin(const void* to, const void* from, size_t length) {
  return DriverStatus(context_->cuda(),
                      context_->cuda().MemcpyAsync(Number(to), Number(from), length, stream_),
                      "cuMemcpyAsync");
}

Status BlockingCopies::Await() {
  drivers::Cuda& cuda = context_->cuda();
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(cuda, EventRecord, event_, stream_));
  return WC_CALL_DRIVER(cuda, EventSynchronize, event_);
}

Status BlockingCopies::ToHost(std::span<std::byte> to, const std::byte* from) {
  const std::lock_guard lock(mutex_);
  const ContextScope scope(*context_);
  WC_RETURN_IF_ERROR(scope.status());
  WC_RETURN_IF_ERROR(Pin(context_->cuda(), pinned_));
  for (size_t at = 0; at < to.size(); at += kBlock) {
    const size_t length = std::min(kBlock, to.size() - at);
    WC_RETURN_IF_ERROR(Begin(pinned_, from + at, length));
    WC_RETURN_IF_ERROR(Await());
    std::memcpy(to.data() + at, pinned_, length);
  }
  return Status::Ok();
}

Status BlockingCopies::ToDevice(std::byte* to, std::span<const std::byte> from) {
  const std::lock_guard lock(mutex_);
  const ContextScope scope(*context_);
  WC_RETURN_IF_ERROR(scope.status());
  WC_RETURN_IF_ERROR(Pin(context_->cuda(), pinned_));
  for (size_t at = 0; at < from.size(); at += kBlock) {
    const size_t length = std::min(kBlock, from.size() - at);
    std::memcpy(pinned_, from.data() + at, length);
    WC_RETURN_IF_ERROR(Begin(to + at, pinned_, length));
    WC_RETURN_IF_ERROR(Await());
  }
  return Status::Ok();
}

Status BlockingCopies::Within(std::span<const Copy> copies) {
  const std::lock_guard lock(mutex_);
  const ContextScope scope(*context_);
  WC_RETURN_IF_ERROR(scope.status());
  Status begun;
  for (const Copy& copy : copies) {
    if (copy.length > 0 && begun.ok()) begun = Begin(copy.to, copy.from, copy.length);
  }
  // Also after a failure: what was begun still moves.
  const Status over = Await();
  return begun.ok() ? over : begun;
}

}  // namespace weightcast::device
