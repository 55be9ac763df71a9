#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "transport/verbs/rdma_device.h"
#include "weightcast/status.h"

namespace weightcast::transport::verbs {

/// What queue pairs and memory of one device need in common to work together. After Create: from any thread.
class ProtectionDomain {
 public:
  /// `device` is opened before Create and outlives it.
  explicit ProtectionDomain(const RdmaDevice& device) : device_(device) {}
  ProtectionDomain(const ProtectionDomain&) = delete;
  ProtectionDomain& operator=(const ProtectionDomain&) = delete;
  /// Its queues and registrations are gone.
  ~ProtectionDomain();

  Status Create();
  [[nodiscard]] ibv_pd* handle() const { return domain_; }

  /// kExhausted and kUnavailable say which limit was met and what to do.
  Result<ibv_mr*> RegisterMemory(std::byte* base, uint64_t length, int access) const;
  /// Device memory: from `offset` of a dma-buf on, or by its address, where that module of the kernel which
  /// knows device memory takes it (nvidia-peermem). `why_none`: why there is no dma-buf, and then `buffer` is
  /// -1.
  Result<ibv_mr*> RegisterDeviceMemory(std::byte* base, uint64_t length, int access, int buffer,
                                       uint64_t offset, std::string_view why_none) const;
  /// Not ok: the device may still let peers at it.
  [[nodiscard]] Status DeregisterMemory(ibv_mr* region) const;

 private:
  const RdmaDevice& device_;
  ibv_pd* domain_ = nullptr;
};

}  // namespace weightcast::transport::verbs
