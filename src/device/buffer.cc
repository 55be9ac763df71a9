#include "device/buffer.h"

#include "base/strings.h"
#include "device/error.h"

namespace weightcast::device {

Result<std::unique_ptr<Buffer>> Buffer::Allocate(std::shared_ptr<const Context> context, size_t bytes) {
  if (bytes == 0)
    return Status(Code::kInvalidArgument, "cannot allocate 0 bytes of device memory; ask for at least 1");
  const ContextScope scope(*context);
  WC_RETURN_IF_ERROR(scope.status());
  drivers::CUdeviceptr address = 0;
  const Status status =
      DriverStatus(context->cuda(), context->cuda().MemAlloc(&address, bytes), "cuMemAlloc");
  if (!status.ok()) {
    return Error(status.code(), "cannot allocate ", HumanBytes(static_cast<double>(bytes)), " on device ",
                 context->ordinal(), ": ", status.message());
  }
  return std::unique_ptr<Buffer>(
      new Buffer(std::move(context), reinterpret_cast<std::byte*>(address), bytes));
}

Buffer::~Buffer() {
  const ContextScope scope(*context_);
  if (scope.status().ok()) context_->cuda().MemFree(reinterpret_cast<drivers::CUdeviceptr>(address_));
}

}  // namespace weightcast::device
