#include "device/export.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "base/advice.h"
#include "base/random.h"
#include "base/strings.h"
#include "device/error.h"

namespace weightcast::device {
namespace {

using drivers::CUdeviceptr;

Result<Handle> ExportLegacy(drivers::Cuda& cuda, const Block& block) {
  drivers::CUipcMemHandle raw{};
  WC_RETURN_IF_ERROR(
      WC_CALL_DRIVER(cuda, IpcGetMemHandle, &raw, reinterpret_cast<CUdeviceptr>(block.address)));
  LegacyHandle handle;
  static_assert(sizeof raw == sizeof handle.bytes);
  std::memcpy(handle.bytes.data(), &raw, sizeof raw);
  return Handle(handle);
}

/// A reference to the block's physical memory, given back at the end.
class RetainedHandle {
 public:
  RetainedHandle(drivers::Cuda& cuda, const Block& block) : cuda_(cuda) {
    status_ = WC_CALL_DRIVER(cuda, MemRetainAllocationHandle, &raw_, block.address);
  }
  RetainedHandle(const RetainedHandle&) = delete;
  RetainedHandle& operator=(const RetainedHandle&) = delete;
  ~RetainedHandle() {
    if (status_.ok()) cuda_.MemRelease(raw_);
  }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] drivers::CUmemGenericAllocationHandle raw() const { return raw_; }

 private:
  drivers::Cuda& cuda_;
  drivers::CUmemGenericAllocationHandle raw_ = 0;
  Status status_;
};

Result<Handle> ExportDescriptor(drivers::Cuda& cuda, const RetainedHandle& retained) {
  int fd = -1;
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(cuda, MemExportToShareableHandle, &fd, retained.raw(),
                                    drivers::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  fcntl(fd, F_SETFD, FD_CLOEXEC);  // A program that is started here would keep the memory.
  return Handle(UniqueFd(fd));
}

Result<Handle> ExportFabric(drivers::Cuda& cuda, const RetainedHandle& retained) {
  FabricHandle handle;
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(cuda, MemExportToShareableHandle, handle.bytes.data(), retained.raw(),
                                    drivers::CU_MEM_HANDLE_TYPE_FABRIC, 0));
  return Handle(handle);
}

Result<Handle> ExportBlock(drivers::Cuda& cuda, Exportable how, const Block& block) {
  if (how == Exportable::kLegacy) return ExportLegacy(cuda, block);
  const RetainedHandle retained(cuda, block);
  WC_RETURN_IF_ERROR(retained.status());
  return how == Exportable::kDescriptors ? ExportDescriptor(cuda, retained) : ExportFabric(cuda, retained);
}

}  // namespace

// A child that was forked is another process.
uint64_t ProcessName() {
  static std::mutex mutex;
  static pid_t process = 0;
  static uint64_t name = 0;
  const std::lock_guard lock(mutex);
  if (process != getpid()) {
    process = getpid();
    name = RandomId();
  }
  return name;
}

AllocationName NameOf(const DeviceMemory& memory) {
  AllocationName name{.process = ProcessName(),
                      .identity = memory.memory.allocation.identity,
                      .device = memory.memory.device,
                      .exportable = memory.exportable,
                      .address = memory.memory.allocation.base,
                      .lengths = {}};
  for (const Block& block : memory.blocks) name.lengths.push_back(block.length);
  return name;
}

Result<std::vector<Handle>> Export(const Context& context, const DeviceMemory& memory, size_t first,
                                   size_t count) {
  if (memory.exportable == Exportable::kNo)
    return Error(Code::kUnavailable, "device memory cannot be exported: ", memory.why_not,
                 "; allocate it with cudaMalloc or weightcast");
  if (first > memory.blocks.size() || count > memory.blocks.size() - first)
    return Error(Code::kOutOfBounds, count, " blocks from block ", first, " on were asked for, ",
                 "and this memory has ", memory.blocks.size(), kReportBug);
  const ContextScope scope(context);
  WC_RETURN_IF_ERROR(scope.status());
  std::vector<Handle> handles;
  for (size_t i = first; i < first + count; ++i) {
    WC_ASSIGN_OR_RETURN(Handle handle, ExportBlock(context.cuda(), memory.exportable, memory.blocks[i]));
    handles.push_back(std::move(handle));
  }
  return handles;
}

}  // namespace weightcast::device
