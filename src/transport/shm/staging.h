#pragma once

#include "transport/shm/staged_in.h"
#include "transport/shm/staged_out.h"

namespace weightcast::transport::shm {

/// Both directions in which a link stages bytes for device memory (docs/gpu.md, "Staged").
struct Staging {
  Staging(Context& context, OwnInbox& inbox, Outbox& outbox, device::Engines& engines, Channel& channel)
      : out(context, outbox, engines, channel), in(context, inbox, outbox, engines, channel) {}
  /// A device that has pinned a ring has lost its context.
  [[nodiscard]] Status failure() const {
    WC_RETURN_IF_ERROR(out.health());
    return in.health();
  }
  [[nodiscard]] bool in_use() const { return out.made() || in.made(); }

  StagedOut out;
  StagedIn in;
};

}  // namespace weightcast::transport::shm
