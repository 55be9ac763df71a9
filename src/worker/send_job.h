#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "worker/comparison.h"
#include "worker/send_plan.h"
#include "worker/send_report.h"
#include "worker/staging.h"
#include "worker/stream_gate.h"

namespace weightcast::worker {

/// One part of an update to one destination.
struct SendJob {
  using Kind = protocol::SpanKind;
  /// One write that may still read its sources.
  struct Flight {
    std::optional<Transfer> handle;  ///< Once Write has returned.
    std::optional<StagingPool::Block> block;
    bool ended = false;
    bool fenced = false;
  };

  std::shared_ptr<const SendPlan> plan;
  size_t target = 0;
  std::shared_ptr<const StreamGate> gate;  ///< Nothing is read before it is open; null: it is.
  bool of_device = false;                  ///< Sources in device memory, and no reader.
  protocol::UpdateId update;
  uint32_t part = 0;
  GrantName grant;
  TransferRange transfers;
  uint32_t next = 0;                   ///< Transfer.
  size_t running = 0;                  ///< Writes begun and not ended.
  size_t making = 0;                   ///< Of these, the ones whose bytes are not all read from the shards.
  std::map<uint32_t, Flight> flights;  ///< By the first transfer.
  bool over = false;                   ///< Begins no more transfers: finished, failed or stopped.
  bool quiet = false;                  ///< Stopped: its end is nobody's business.
  Status outcome;
  bool path = false;  ///< The outcome is the connection's, not ours.
  SendClock clock;
  uint64_t bytes = 0;   ///< Given to the connection,
  uint64_t pieces = 0;  ///< in so many segments.
  /// Set if the destination compares. Shared by the jobs of an update that send the same.
  std::shared_ptr<PairDigests> digests;

  [[nodiscard]] const SendTarget& to() const { return plan->targets[target]; }
  /// Something has begun or ended.
  void TellClock();
  [[nodiscard]] std::vector<protocol::Span> Spans(uint64_t chunk) const;
  /// How many transfers go with the next one.
  [[nodiscard]] uint32_t NextTogether() const;
  /// What is read for the last transfer is checked with all that was read before.
  [[nodiscard]] bool checks(uint32_t transfer) const {
    return plan->memory->reader != nullptr && transfer + 1 == transfers.end;
  }
  /// Of the bytes that MakePieces has found or staged.
  Status Digest(uint32_t transfer, const StagingSpace& space);
};

}  // namespace weightcast::worker
