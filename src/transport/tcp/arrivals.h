#pragma once

#include <cstdint>
#include <string_view>

#include "transport/ring.h"
#include "transport/tcp/inbox.h"
#include "transport/tcp/link_shared.h"
#include "transport/tcp/own_operations.h"
#include "transport/tcp/peer_operations.h"
#include "transport/tcp/receive_stage.h"

namespace weightcast::transport::tcp {

/// What the lanes of one link have to tell each other.
class LaneOwner {
 public:
  virtual ~LaneOwner() = default;
  /// A lane has failed and hung up.
  virtual void OnHungUp() = 0;
  /// The peer says on lane `carrier` that another one is over. Not empty: a violation.
  virtual std::string_view OnLaneOver(uint32_t carrier, const Frame& frame) = 0;
};

/// The peer's frames on one lane. Each has its effect when the bytes of all before it are in place: those
/// behind bytes for device memory wait for the copies.
class Arrivals final : public FrameHandler {
 public:
  Arrivals(const LinkShared& shared, LaneOwner& owner, uint32_t lane, Inbox& inbox, OwnOperations& own,
           PeerOperations& peers);

  Verdict OnFrame(const Frame& frame) override;
  std::string_view OnPayload(const Frame& frame) override;
  [[nodiscard]] bool Paused() const override { return events_.full(); }

  /// Nothing of this grant lands from here on. True: the rest of what is being received goes into nothing.
  bool Fence(const GrantName& grant);
  /// No byte of this region is written for the peer from here on. True: as above.
  bool Forget(const LocalRegion& region);

  [[nodiscard]] ReceiveStage& stage() { return stage_; }
  [[nodiscard]] const ReceiveStage& stage() const { return stage_; }
  /// No frame waits.
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  /// Gives the frames their effect whose turn has come; sets `any` if there was one. Not empty: a violation.
  std::string_view TakeWaiting(bool& any);

 private:
  /// A whole frame that waits until all that came before it is in place.
  struct Waiting {
    Frame frame;
    Code code = Code::kOk;
    uint32_t blocks = 0;  ///< That must be over.
  };
  Verdict OnWrite(const Frame& frame);
  Verdict OnData(const Frame& frame);
  Verdict Land(LocalRegion& region, uint64_t offset, const GrantName& grant, ReceiveStage::For whom);
  [[nodiscard]] bool MustQueue() const { return !stage_.empty() || !waiting_.empty(); }
  std::string_view Queue(const Frame& frame, Code code);
  std::string_view Execute(const Frame& frame, Code code);
  bool DivertWrite(Code code);

  LaneOwner& owner_;
  uint32_t lane_;
  uint32_t depth_;
  EventQueue& events_;
  Inbox& inbox_;
  OwnOperations& own_;
  PeerOperations& peers_;
  uint32_t next_sequence_ = 0;  ///< Of the peer's operations.
  /// The write whose payload is being received.
  Code write_code_ = Code::kOk;
  const LocalRegion* write_region_ = nullptr;
  ReceiveStage stage_;
  Ring<Waiting> waiting_;  ///< Has room once the stage is in use.
};

}  // namespace weightcast::transport::tcp
