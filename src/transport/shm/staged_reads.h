#pragma once

#include <cstdint>

#include "transport/ring.h"
#include "transport/shm/context.h"
#include "transport/shm/inbox.h"
#include "transport/shm/records.h"
#include "transport/shm/staged_out.h"

namespace weightcast::transport::shm {

/// The peer's reads of this side's memory whose bytes this side brings into the peer's staging ring, one
/// after another. The holder of progress alone; no driver call.
class StagedReads {
 public:
  StagedReads(Context& context, const OwnInbox& inbox, StagedOut& out)
      : context_(&context), inbox_(&inbox), out_(&out) {}

  /// False: more than the window allows.
  bool Add(const GetRecord& record);
  /// Brings what there is room for; StagedOut::Flush follows. True if anything was.
  bool Run(Budget& budget);
  [[nodiscard]] bool empty() const { return reads_.empty(); }

 private:
  static constexpr size_t kMost = 64;  ///< Twice an honest peer's window.
  enum class Step : uint8_t { kDone, kWaits };
  struct Read {
    GetRecord get;
    uint64_t done = 0;
  };
  Step BringPiece(Read& read, const LocalRegion& region, Budget& budget);
  Step Refuse(const Read& read, Code code);

  Context* context_;
  const OwnInbox* inbox_;
  StagedOut* out_;
  Ring<Read> reads_{kMost};
};

}  // namespace weightcast::transport::shm
