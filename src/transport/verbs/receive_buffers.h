#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "transport/verbs/messages.h"
#include "transport/verbs/rdma_device.h"
#include "weightcast/status.h"

namespace weightcast::transport::verbs {

/// The shared receive queue of one NIC and the buffers of the messages that it receives. Each is posted, or
/// its completion was taken and it waits for Repost. Belongs to the holder of progress.
class ReceiveBuffers {
 public:
  /// `device` is opened before Create and outlives it.
  explicit ReceiveBuffers(RdmaDevice& device) : device_(device) {}
  ReceiveBuffers(const ReceiveBuffers&) = delete;
  ReceiveBuffers& operator=(const ReceiveBuffers&) = delete;
  /// Its queue pairs are gone.
  ~ReceiveBuffers();

  /// Makes and posts `count`.
  Status Create(ibv_pd* domain, uint32_t count);
  [[nodiscard]] ibv_srq* handle() const { return queue_; }

  /// In the id of a receive; no send has it.
  static constexpr uint64_t kId = uint64_t{1} << 63;
  /// What this receive's buffer has, until Repost. Of a failed one, or an immediate value: of no meaning.
  std::string_view Take(const ibv_wc& completion);
  /// Posts again all that were taken.
  Status Repost();

 private:
  using Buffer = std::array<char, kMaxMessage>;

  RdmaDevice& device_;
  ibv_srq* queue_ = nullptr;
  /// Pages of their own: where fork is made safe, a child has none of those that are registered.
  std::unique_ptr<Buffer[], void (*)(void*)> buffers_{nullptr, &std::free};
  ibv_mr* region_ = nullptr;
  std::vector<uint32_t> taken_;  ///< Not posted.
  std::vector<ibv_recv_wr> requests_;
  std::vector<ibv_sge> places_;
};

}  // namespace weightcast::transport::verbs
