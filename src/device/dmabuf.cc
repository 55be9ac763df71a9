#include "device/dmabuf.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/strings.h"
#include "device/attribute.h"
#include "device/error.h"

namespace weightcast::device {
namespace {

using drivers::CUdeviceptr;

/// What the driver may not like about it.
Status NotGiven(const DeviceMemory& memory, const Status& why) {
  if (memory.exportable == Exportable::kLegacy) return {Code::kUnavailable, why.message()};
  return Error(Code::kUnavailable, memory.why_not.empty() ? "it is memory of cuMemMap" : memory.why_not, ": ",
               why.message().substr(0, why.message().find("; ")),  // Its advice is for other mistakes.
               "; allocate it with cudaMalloc, or with cuMemMap and gpuDirectRDMACapable");
}

}  // namespace

Result<DmaBuf> ExportDmaBuf(const Context& context, const DeviceMemory& memory) {
  const ContextScope scope(context);
  WC_RETURN_IF_ERROR(scope.status());
  WC_ASSIGN_OR_RETURN(const int supported,
                      AttributeOf(context, drivers::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED));
  if (supported == 0)
    return Error(Code::kUnavailable, "the driver gives no dma-buf of device ", context.ordinal());
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<CUdeviceptr>(memory.memory.address);
  const CUdeviceptr start = begin / page * page;
  const CUdeviceptr end = (begin + memory.memory.length + page - 1) / page * page;
  drivers::Cuda& cuda = context.cuda();
  int fd = -1;
  const auto result = cuda.MemGetHandleForAddressRange(&fd, start, end - start,
                                                       drivers::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  const Status status = DriverStatus(cuda, result, "cuMemGetHandleForAddressRange");
  if (LosesContext(result)) return status;
  if (!status.ok()) return NotGiven(memory, status);
  fcntl(fd, F_SETFD, FD_CLOEXEC);  // A program that is started here would keep the memory.
  return DmaBuf{.fd = UniqueFd(fd), .offset = begin - start};
}

Status CheckOrder(const Context& context) {
  const ContextScope scope(context);
  WC_RETURN_IF_ERROR(scope.status());
  WC_ASSIGN_OR_RETURN(const int ordering,
                      AttributeOf(context, drivers::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING));
  if (ordering >= drivers::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER) return Status::Ok();
  return Error(Code::kUnavailable, "device ", context.ordinal(),
               " does not order the writes of NICs, so verbs cannot write to its "
               "memory; where setting transport names verbs alone, add shm or tcp");
}

}  // namespace weightcast::device
