#include "tools/common/device_block.h"

#include <utility>

#include "base/strings.h"
#include "device/error.h"
#include "device/in_process.h"

namespace weightcast::tools {
namespace {

constexpr size_t kPage = size_t{2} << 20;

drivers::CUdeviceptr Number(const std::byte* address) {
  return reinterpret_cast<drivers::CUdeviceptr>(address);
}

}  // namespace

Result<std::shared_ptr<DeviceBlock>> DeviceBlock::Make(const Settings& settings, int64_t index,
                                                       DeviceAllocation allocation, size_t bytes) {
  WC_ASSIGN_OR_RETURN(const auto devices, device::DevicesInProcess(settings));
  const device::Gpus& gpus = *devices->gpus();
  const device::Gpu& gpu = gpus.all()[static_cast<size_t>(index) % gpus.all().size()];
  // weightcast makes no context; this program is the user who has one.
  drivers::CUcontext kept{};
  WC_RETURN_IF_ERROR(device::DriverStatus(gpus.cuda(), gpus.cuda().DevicePrimaryCtxRetain(&kept, gpu.handle),
                                          "cuDevicePrimaryCtxRetain"));
  WC_ASSIGN_OR_RETURN(auto context, gpus.Retain(gpu.ordinal));
  WC_ASSIGN_OR_RETURN(auto copies, device::BlockingCopies::Create(std::move(context)));
  std::shared_ptr<DeviceBlock> block(new DeviceBlock(std::move(copies)));
  if (allocation == DeviceAllocation::kPages) {
    WC_RETURN_IF_ERROR(block->MapPages(bytes));
  } else {
    WC_ASSIGN_OR_RETURN(block->buffer_, device::Buffer::Allocate(block->copies_->context(), bytes));
    block->memory_ = block->buffer_->memory();
  }
  return block;
}

Status DeviceBlock::MapPages(size_t bytes) {
  const device::Context& context = *copies_->context();
  const device::ContextScope scope(context);
  WC_RETURN_IF_ERROR(scope.status());
  reserved_ = (bytes + kPage - 1) / kPage * kPage;
  drivers::CUdeviceptr address = 0;
  WC_RETURN_IF_ERROR(device::DriverStatus(
      context.cuda(), context.cuda().MemAddressReserve(&address, reserved_, 0, 0, 0), "cuMemAddressReserve"));
  memory_ = {.kind = MemoryKind::kDevice,
             .device = context.ordinal(),
             .address = reinterpret_cast<std::byte*>(address),
             .length = bytes};
  for (; mapped_ < reserved_; mapped_ += kPage) WC_RETURN_IF_ERROR(MapPage(mapped_));
  return Status::Ok();
}

Status DeviceBlock::MapPage(size_t offset) {
  const device::Context& context = *copies_->context();
  drivers::Cuda& cuda = context.cuda();
  const auto check = [&](drivers::CUresult result, std::string_view call) {
    return device::DriverStatus(cuda, result, call);
  };
  drivers::CUmemAllocationProp wanted{};
  wanted.type = drivers::CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes = drivers::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  wanted.location = {.type = drivers::CU_MEM_LOCATION_TYPE_DEVICE, .id = context.ordinal()};
  const drivers::CUmemAccessDesc access{.location = wanted.location,
                                        .flags = drivers::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const drivers::CUdeviceptr at = Number(memory_.address) + offset;
  drivers::CUmemGenericAllocationHandle handle = 0;
  WC_RETURN_IF_ERROR(check(cuda.MemCreate(&handle, kPage, &wanted, 0), "cuMemCreate"));
  const Status mapped = check(cuda.MemMap(at, kPage, 0, handle, 0), "cuMemMap");
  cuda.MemRelease(handle);  // The mapping keeps the memory.
  WC_RETURN_IF_ERROR(mapped);
  const Status given = check(cuda.MemSetAccess(at, kPage, &access, 1), "cuMemSetAccess");
  if (!given.ok()) cuda.MemUnmap(at, kPage);
  return given;
}

DeviceBlock::~DeviceBlock() {
  if (reserved_ == 0) return;
  const device::ContextScope scope(*copies_->context());
  if (!scope.status().ok()) return;
  drivers::Cuda& cuda = copies_->context()->cuda();
  for (size_t at = 0; at < mapped_; at += kPage) cuda.MemUnmap(Number(memory_.address) + at, kPage);
  cuda.MemAddressFree(Number(memory_.address), reserved_);
}

Status DeviceBlock::Write(size_t offset, std::span<const std::byte> bytes) {
  return copies_->ToDevice(memory_.address + offset, bytes);
}

Status DeviceBlock::Read(size_t offset, std::span<std::byte> bytes) const {
  return copies_->ToHost(bytes, memory_.address + offset);
}

}  // namespace weightcast::tools
