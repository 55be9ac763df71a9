#include "transport/verbs/protection_domain.h"

#include <cerrno>
#include <string>

#include "base/strings.h"

namespace weightcast::transport::verbs {

Status ProtectionDomain::Create() {
  domain_ = device_.api().AllocPd(device_.context());
  return domain_ != nullptr ? Status::Ok() : device_.NotMade("a protection domain");
}

ProtectionDomain::~ProtectionDomain() {
  if (domain_ != nullptr) device_.api().DeallocPd(domain_);
}

Result<ibv_mr*> ProtectionDomain::RegisterMemory(std::byte* base, uint64_t length, int access) const {
  ibv_mr* region = device_.api().RegMr(domain_, base, length, access);
  // Memory that may only be read, a mapped file for instance, is a source all the same.
  if (region == nullptr && (errno == EFAULT || errno == EACCES || errno == EPERM) &&
      (access & IBV_ACCESS_REMOTE_WRITE) == 0) {
    region = device_.api().RegMr(domain_, base, length, access & ~IBV_ACCESS_LOCAL_WRITE);
  }
  if (region != nullptr) return region;
  const int error = errno;
  if (error == ENOMEM || error == EAGAIN) {
    return Error(Code::kExhausted, device_.name(), " cannot pin ", HumanBytes(static_cast<double>(length)),
                 ": ", ErrnoText(error),
                 "; raise the limit of locked memory (`ulimit -l unlimited`, LimitMEMLOCK=infinity in a "
                 "unit, --ulimit memlock=-1 in a container), or register less: at most ",
                 device_.limits().max_mr, " regions");
  }
  return Status(error == EOPNOTSUPP ? Code::kUnavailable : Code::kInvalidArgument,
                StrCat(device_.name(), " cannot register ", HumanBytes(static_cast<double>(length)), ": ",
                       ErrnoText(error), "; give memory that is allocated, or leave ", device_.name(),
                       " out in setting nics"));
}

Result<ibv_mr*> ProtectionDomain::RegisterDeviceMemory(std::byte* base, uint64_t length, int access,
                                                       int buffer, uint64_t offset,
                                                       std::string_view why_none) const {
  std::string why(why_none);
  if (buffer >= 0) {
    ibv_mr* const region =
        device_.api().RegDmabufMr(domain_, offset, length, reinterpret_cast<uint64_t>(base), buffer, access);
    if (region != nullptr) return region;
    why = ErrnoText(errno);
  }
  if (ibv_mr* const region = device_.api().RegMr(domain_, base, length, access); region != nullptr)
    return region;
  return Error(Code::kUnavailable, device_.name(), " cannot register ",
               HumanBytes(static_cast<double>(length)), " of device memory: as a dma-buf: ", why,
               "; by its address: ", ErrnoText(errno),
               "; the first needs NVIDIA's open kernel modules, Linux 5.12 and rdma-core 34, the "
               "second the module nvidia-peermem; or leave ",
               device_.name(), " out in setting nics");
}

Status ProtectionDomain::DeregisterMemory(ibv_mr* region) const {
  const int error = region == nullptr ? 0 : device_.api().DeregMr(region);
  if (error == 0) return Status::Ok();
  return Error(Code::kInternal, device_.name(), " did not deregister the ",
               HumanBytes(static_cast<double>(region->length)),
               " of memory that were registered: ", ErrnoText(error),
               "; do not free or reuse them before this process ends");
}

}  // namespace weightcast::transport::verbs
