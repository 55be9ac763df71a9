#include <sys/mman.h>
#include <unistd.h>

#include "fake_ibverbs/host.h"

namespace weightcast::fake {
namespace {

constexpr int kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                       IBV_ACCESS_REMOTE_ATOMIC | static_cast<int>(IBV_ACCESS_OPTIONAL_RANGE);

uintptr_t PageStart(uintptr_t address) {
  return address & ~(static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
}

/// Whether the range is mapped at all; pinning pages would find out.
bool IsMapped(const void* address, size_t length) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t start = PageStart(begin);
  return msync(reinterpret_cast<void*>(start), begin - start + length, MS_ASYNC) == 0;
}

}  // namespace

ibv_pd* FakeIbverbs::AllocPd(ibv_context* context) {
  const std::lock_guard lock(core_->mutex);
  if (const int error = Refused(Call::kAllocPd); error != 0) return Errno(error);
  Device& device = DeviceOf(context);
  if (device.pds.size() >= static_cast<size_t>(device.config.max_pd)) return Errno(ENOMEM);
  auto pd = std::make_unique<Pd>();
  pd->context = context;
  ++static_cast<Context*>(context)->users;
  return device.pds.Add(std::move(pd), core_->NextId());
}

int FakeIbverbs::DeallocPd(ibv_pd* pd) {
  const std::lock_guard lock(core_->mutex);
  Pd& mine = *static_cast<Pd*>(pd);
  if (mine.users > 0) return EBUSY;
  auto* context = static_cast<Context*>(mine.context);
  context->owner->pds.Remove(&mine, "protection domain");
  --context->users;
  return 0;
}

int FakeIbverbs::CheckMr(const Pd& pd, size_t length, int access, Call call) {
  Device& device = DeviceOf(pd.context);
  if (const int error = Refused(call, device); error != 0) return error;
  if (device.mrs.size() >= static_cast<size_t>(device.config.max_mr)) return ENOMEM;
  if (length == 0 || length > device.config.max_mr_size) return EINVAL;
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) return EOPNOTSUPP;
  if ((access & ~kKnown) != 0) return EINVAL;
  const bool written = (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
  return written && (access & IBV_ACCESS_LOCAL_WRITE) == 0 ? EINVAL : 0;
}

ibv_mr* FakeIbverbs::AddMr(Pd& pd, std::unique_ptr<Mr> mr) {
  mr->context = pd.context;
  mr->pd = &pd;
  ++pd.users;
  Mr* added = DeviceOf(pd.context).mrs.Add(std::move(mr), core_->NextId());
  core_->Add(*added);
  return added;
}

ibv_mr* FakeIbverbs::RegMr(ibv_pd* pd, void* address, size_t length, int access) {
  const std::lock_guard lock(core_->mutex);
  Pd& mine = *static_cast<Pd*>(pd);
  if (const int error = CheckMr(mine, length, access, Call::kRegMr); error != 0) return Errno(error);
  if (!IsMapped(address, length)) return Errno(EFAULT);
  auto mr = std::make_unique<Mr>();
  mr->addr = address;
  mr->length = length;
  mr->access = access;
  mr->iova = reinterpret_cast<uintptr_t>(address);
  mr->memory = static_cast<std::byte*>(address);
  return AddMr(mine, std::move(mr));
}

ibv_mr* FakeIbverbs::RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                 int access) {
  const std::lock_guard lock(core_->mutex);
  Pd& mine = *static_cast<Pd*>(pd);
  if (!DeviceOf(pd->context).config.dmabuf) return Errno(EOPNOTSUPP);
  if (const int error = CheckMr(mine, length, access, Call::kRegDmabufMr); error != 0) return Errno(error);
  const uint64_t start = PageStart(offset);
  // As the kernel: the offset within a page is that of the address.
  if (offset - start != iova - PageStart(iova)) return Errno(EINVAL);
  auto mr = std::make_unique<Mr>();
  mr->mapping_length = length + (offset - start);
  mr->mapping =
      mmap(nullptr, mr->mapping_length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(start));
  if (mr->mapping == MAP_FAILED) return Errno(EINVAL);
  mr->addr = reinterpret_cast<void*>(offset);  // So does libibverbs.
  mr->length = length;
  mr->access = access;
  mr->iova = iova;
  mr->memory = static_cast<std::byte*>(mr->mapping) + (offset - start);
  return AddMr(mine, std::move(mr));
}

int FakeIbverbs::DeregMr(ibv_mr* mr) {
  Wait(Call::kDeregMr);
  const std::lock_guard lock(core_->mutex);
  Mr& mine = *static_cast<Mr*>(mr);
  if (const int error = Planned(Call::kDeregMr); error != 0) return error;
  if (DeviceOf(mine.context).removed) return EIO;
  core_->Forget(mine);
  if (mine.mapping != nullptr) munmap(mine.mapping, mine.mapping_length);
  auto* pd = static_cast<Pd*>(mine.pd);
  DeviceOf(mine.context).mrs.Remove(&mine, "memory region");
  --pd->users;
  return 0;
}

}  // namespace weightcast::fake
