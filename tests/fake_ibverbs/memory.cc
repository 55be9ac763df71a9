#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake_cuda/dmabuf.h"
#include "fake_ibverbs/host.h"

namespace weightcast::fake {
namespace {

constexpr int kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                       IBV_ACCESS_REMOTE_ATOMIC | static_cast<int>(IBV_ACCESS_OPTIONAL_RANGE);

uintptr_t PageStart(uintptr_t address) {
  return address & ~(static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
}

size_t WholePages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

/// Whether the processor reaches the range at all; pinning pages would find out.
bool IsReachable(const void* address, size_t length) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t start = PageStart(begin);
  return madvise(reinterpret_cast<void*>(start), WholePages(begin - start + length), MADV_POPULATE_READ) == 0;
}

/// The bytes of a dma-buf from a whole page on; nullptr with errno.
void* Map(int fd, uint64_t start, size_t length) {
  int type = 0;
  socklen_t size = sizeof type;
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0)
    return fake_cuda::MapDmaBuf(fd, start, WholePages(length));
  void* const mapped =
      mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(start));
  return mapped == MAP_FAILED ? Errno(EINVAL) : mapped;
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
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (!IsReachable(address, length)) return RegPeerMemory(mine, begin, length, access);
  auto mr = std::make_unique<Mr>();
  mr->addr = address;
  mr->length = length;
  mr->access = access;
  mr->iova = begin;
  mr->memory = static_cast<std::byte*>(address);
  return AddMr(mine, std::move(mr));
}

ibv_mr* FakeIbverbs::RegPeerMemory(Pd& pd, uint64_t address, size_t length, int access) {
  const auto& peermem = DeviceOf(pd.context).config.peermem;
  UniqueFd fd(peermem == nullptr ? -1 : peermem(address, length));
  if (!fd.valid()) return Errno(EFAULT);
  ibv_mr* const region = RegMapped(pd, address - PageStart(address), length, address, std::move(fd), access);
  if (region != nullptr) region->addr = reinterpret_cast<void*>(address);
  return region;
}

/// From `offset` of the descriptor on.
ibv_mr* FakeIbverbs::RegMapped(Pd& pd, uint64_t offset, size_t length, uint64_t iova, UniqueFd fd,
                               int access) {
  const uint64_t start = PageStart(offset);
  auto mr = std::make_unique<Mr>();
  mr->mapping_length = WholePages(length + (offset - start));
  mr->mapping = Map(fd.get(), start, length + (offset - start));
  if (mr->mapping == nullptr) return nullptr;
  mr->dmabuf = std::move(fd);
  mr->addr = reinterpret_cast<void*>(offset);  // So does libibverbs.
  mr->length = length;
  mr->access = access;
  mr->iova = iova;
  mr->memory = static_cast<std::byte*>(mr->mapping) + (offset - start);
  return AddMr(pd, std::move(mr));
}

ibv_mr* FakeIbverbs::RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                 int access) {
  const std::lock_guard lock(core_->mutex);
  Pd& mine = *static_cast<Pd*>(pd);
  if (!DeviceOf(pd->context).config.dmabuf) return Errno(EOPNOTSUPP);
  if (const int error = CheckMr(mine, length, access, Call::kRegDmabufMr); error != 0) return Errno(error);
  // As the kernel: the offset within a page is that of the address.
  if (offset - PageStart(offset) != iova - PageStart(iova)) return Errno(EINVAL);
  UniqueFd kept(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!kept.valid()) return Errno(EBADF);
  return RegMapped(mine, offset, length, iova, std::move(kept), access);
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
