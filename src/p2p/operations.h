#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "p2p/memories.h"
#include "p2p/state.h"
#include "weightcast/status.h"

namespace weightcast::p2p {

/// Operations, from the call to their end: sends meet receives, transfers begin once all memory is described,
/// receives are offered and taken back. Under the engine's mutex, unless said otherwise.
class Operations {
 public:
  Operations(State& state, Memories& memories) : s_(state), memories_(memories) { self_->operations = this; }
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;

  /// One that has no channel yet. Without the mutex.
  Result<OperationPtr> Make(OperationKind kind, std::span<const LocalSlice> local);
  Status Attach(Operation& operation, uint64_t channel);
  /// The script's number.
  uint64_t Number(OperationPtr operation);
  void MeetOffer(const OperationPtr& send);
  /// As soon as every memory it names has been described.
  void Launch(const OperationPtr& operation);
  /// Without the mutex.
  void OnTransferEnd(Operation& operation, Status outcome);
  void OfferWhatCanBe(const PeerPtr& peer);
  void EndReceive(const OperationPtr& receive, const Status& outcome);
  void EndUnfinished(Operation& operation, const Status& reason);
  void Finish(Operation& operation, const Status& outcome);
  void Cancel(const OperationPtr& operation, const Status& reason);
  void Retire(Operation& operation);
  bool IsOver(Operation& operation);
  /// Nothing is received from any stream any more. Without the mutex.
  void ForgetStreams();

 private:
  Status AwaitStreams(const OperationPtr& operation);
  void OnStreamOver(uint64_t waits_as, const Status& outcome);
  void FailSend(Operation& send, const Status& reason);
  Result<bool> AllDescribed(const Operation& operation, Peer& peer);
  bool OfferOne(const OperationPtr& receive);
  void OfferMemory(const Operation& receive);
  void TellWithdrawn(const Operation& receive, const Status& reason);
  void TellEnd(const Operation& receive);

  /// By which wc-device finds this, as long as it may. Its mutex is taken before the engine's.
  struct Self {
    std::mutex mutex;
    Operations* operations = nullptr;
  };
  State& s_;
  Memories& memories_;
  const std::shared_ptr<Self> self_ = std::make_shared<Self>();
  uint64_t last_ = 0;
  uint64_t last_awaiting_ = 0;
};

}  // namespace weightcast::p2p
