#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/shm/send_queue.h"

namespace weightcast::transport::shm {

/// The two paths on which this side's processor puts the bytes in place: mapped memory and cross-process
/// copy.
class DirectCopies : public QueueWorker {
 public:
  DirectCopies(LinkId link, Context& context, Outbox& outbox, Paths& paths, SendQueue& queue)
      : QueueWorker(link, context, outbox, queue), paths_(&paths) {}

  /// Of host memory: one of the two, or the ring.
  [[nodiscard]] Path PathOf(const Op& op, const PeerRegion& region) const;
  Step Touch(Pending& pending, const PeerRegion& region);
  Step Move(Pending& pending, PeerRegion& region, Budget& budget);
  Step CopyBatch(Budget& budget);

 private:
  static constexpr size_t kBatch = 64;  ///< Pieces of one cross-process copy.

  size_t Gather(uint64_t most_bytes, std::span<iovec> local, std::span<iovec> remote);
  Step OnCopied(std::span<const iovec> local, uint64_t copied);
  Step OnCopyError(int error);

  Paths* paths_;
};

}  // namespace weightcast::transport::shm
