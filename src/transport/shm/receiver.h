#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>

#include "transport/ring.h"
#include "transport/shm/context.h"
#include "transport/shm/inbox.h"
#include "transport/shm/outbox.h"
#include "transport/shm/puller.h"
#include "transport/shm/records.h"
#include "transport/shm/sender.h"
#include "transport/shm/staged_reads.h"

namespace weightcast::transport::shm {

/// What the peer puts into our inbox: signals, puts and gets of its operations, and answers to ours. Every
/// field is checked against our own tables. Draining never waits for room in the peer's inbox, so two
/// full inboxes cannot block each other: answers and bytes that do not fit are kept, and the
/// peer's windows bound how many.
class Receiver {
 public:
  Receiver(LinkId link, const PullerParts& parts, Sender& sender);

  /// Handles records until none is left, `budget` is used up or events have piled up. kProtocol when the
  /// peer breaks the rules. `any`: set if there was something.
  Status Drain(Budget& budget, bool& any);
  /// The last time, when the peer has gone: all that is left. No copy is begun, and those under way do not
  /// count: their engines' fence is waited for.
  void DrainAll();
  /// Goes on with the copies that the peer has ordered. True if anything was begun or is over.
  bool RunPulls(Budget& budget);
  /// Goes on with what the peer has staged, for its writes and this side's reads. True if there was anything.
  bool RunStaged(Budget& budget);
  /// Sends the answers and the bytes that are due, as far as there is room. True if anything was sent.
  bool Serve(Budget& budget);
  [[nodiscard]] bool owes() const {
    return !answers_.empty() || !gets_.empty() || !staged_reads_.empty() || !staging_->out.empty();
  }

 private:
  static constexpr size_t kMostAnswers = 512;  ///< More than the window of an honest peer can need.
  static constexpr size_t kMostGets = 64;
  static constexpr uint64_t kDataPiece = 128 * 1024;

  struct Served {
    GetRecord get;
    uint64_t done = 0;
  };

  Status Handle(const RecordBody& body, Budget& budget);
  void OnSignal(const SignalRecord& record);
  Status OnPut(const PutRecord& record, Budget& budget);
  Status OnPull(const PullRecord& record);
  void EndPull(const Pull& pull, bool peer_ended);
  Status OnStagedPut(const PutRecord& record);
  void EndStagedPut(const Arrival& arrival);
  /// After a piece of a write: what it is to its operation and to the signal that stands for it. True if that
  /// signal counts.
  bool EndPiece(uint8_t flags, uint16_t slot, uint64_t sequence);
  [[nodiscard]] Code Place(const PutRecord& record, const std::byte* bytes);
  void Answer(uint64_t sequence, Code code);
  Status OnGet(const GetRecord& record);
  Status OnData(const DataRecord& record, Budget& budget);
  bool SendAnswers();
  bool SendData(Budget& budget);
  [[nodiscard]] const LocalRegion* FindHost(uint32_t id, uint32_t generation) const;

  LinkId link_;
  PullerParts parts_;
  Context* context_;
  OwnInbox* inbox_;
  Outbox* outbox_;
  Sender* sender_;
  Staging* staging_;
  StagedReads staged_reads_;
  std::optional<Puller> puller_;  ///< From the first order on.
  bool ending_ = false;

  Code put_code_ = Code::kOk;       ///< Of the write under way: the first refusal of its pieces.
  bool put_signal_ = false;         ///< The next record must be the put's signal.
  bool put_signal_counts_ = false;  ///< All that it stands for has landed.
  std::array<Code, kGrantSlots> scope_failure_{};
  Ring<AnswerRecord> answers_{kMostAnswers};
  std::deque<Served> gets_;
};

}  // namespace weightcast::transport::shm
