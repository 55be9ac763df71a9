#pragma once

#include <cstdint>

#include "transport/ring.h"
#include "transport/shm/context.h"
#include "transport/shm/inbox.h"
#include "transport/shm/outbox.h"
#include "transport/shm/pull.h"
#include "transport/shm/send_queue.h"

namespace weightcast::transport::shm {

/// The pulls of one link that this side's processor copies, out of the peer's host memory (docs/wire.md,
/// "four paths"). The holder of progress alone.
class HostPulls {
 public:
  HostPulls(Context& context, const OwnInbox& inbox, Outbox& outbox, Paths& paths);
  /// Copies of `pulls`, from number `first` on, what one call of the kernel takes. True if anything of them
  /// went on; a pull that cannot go on has its `code` set.
  bool Copy(Ring<Pull>& pulls, uint32_t first, Budget& budget);

 private:
  [[nodiscard]] Code Check(const PullRecord& record, const LocalRegion* region) const;
  [[nodiscard]] bool Stands(const PullRecord& record) const;
  /// False: the peer is no more, which its descriptor tells soon.
  bool Fail(Pull& pull, int error);

  Context* context_;
  const OwnInbox* inbox_;
  Outbox* outbox_;
  Paths* paths_;
};

}  // namespace weightcast::transport::shm
