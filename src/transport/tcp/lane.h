#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/poller.h"
#include "transport/event_queue.h"
#include "transport/grant_table.h"
#include "transport/refusals.h"
#include "transport/ring.h"
#include "transport/tcp/inbox.h"
#include "transport/tcp/outbox.h"
#include "transport/tcp/receive_stage.h"
#include "transport/tcp/regions.h"
#include "weightcast/clock.h"

namespace weightcast::transport::tcp {

/// What all lanes of a transport have in common. Outlives them.
struct LaneShared {
  const Poller& poller;
  Regions& regions;
  EventQueue& events;
  uint32_t& wanting;           ///< How many lanes want attention though no socket may say so.
  bool& moved;                 ///< Set when bytes went in or out.
  TimePoint& next_step;        ///< Set to the past when a link's NextStep may have come nearer.
  Copiers* copiers = nullptr;  ///< Of the link.
};

/// One started socket of a link: the peer's operations carried out and ours sent. Once it fails it stays
/// closed; it has then said LaneDown, and its operations wait for Settle.
class Lane final : private FrameHandler {
 public:
  /// What the lanes of one link have to tell each other.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// A lane has failed and hung up.
    virtual void OnHungUp() = 0;
    /// The peer says on lane `carrier` that another one is over. Not empty: a violation.
    virtual std::string_view OnLaneOver(uint32_t carrier, const Frame& frame) = 0;
  };

  Lane(const LaneShared& shared, Owner& owner, const GrantTable& grants, LinkId link, uint32_t index,
       uint32_t depth, UniqueFd socket, std::string peer);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane() override;
  /// From here on the poller tells when there is something to receive.
  Status Watch();

  [[nodiscard]] bool open() const { return socket_.valid(); }
  /// No copy between device memory and this lane's blocks is under way. A lane that has hung up becomes so
  /// and stays so.
  [[nodiscard]] bool quiet() const { return (stage_ == nullptr || stage_->empty()) && outbox_.quiet(); }
  /// Why it is down, for a person.
  [[nodiscard]] const std::string& reason() const { return reason_; }
  /// Goes on with what was left: input that found no room among the events or blocks, output that found none
  /// in the socket, a source whose event was not over, copies.
  void Continue();
  /// Before sleeping. False: there is something to do now. Else the poller will tell, also when a full
  /// socket takes more.
  bool Arm();
  [[nodiscard]] bool HasRoom() const { return outbox_.HasRoom(); }

  /// `code`: whether `op` is in order. kOk when it goes out; else why it is refused. Flush sends.
  Code Push(Op op, Code code, LocalRegion* local, const ImportedRegion& remote);
  void Flush();
  /// Receives a bounded amount, then sends what became due.
  void Receive();
  /// The same without having been told that something is there. False: it has other things to do first.
  bool LookForMore();

  /// Nothing of this grant lands from here on.
  void Fence(const GrantName& grant);
  /// No byte of this region is written or read for the peer from here on.
  void Forget(const LocalRegion& region);
  /// Queued; Flush sends it.
  void SayLaneOver(uint16_t lane, uint32_t generation, bool heard) {
    outbox_.SayLaneOver(lane, generation, heard);
  }
  /// Closes the socket and says LaneDown: nothing lands here through it any more.
  void HangUp(Status reason);
  /// Completes what is left with `code`: the peer has hung up as well, or nobody asks any more. Once quiet().
  void Settle(Code code) { outbox_.FailAll(code); }
  /// Closes the socket, without LaneDown.
  void Close();

 private:
  Verdict OnFrame(const Frame& frame) override;
  std::string_view OnPayload(const Frame& frame) override;
  [[nodiscard]] bool Paused() const override { return shared_.events.full(); }

  Verdict OnWrite(const Frame& frame);
  std::string_view OnRead(const Frame& frame);
  Verdict OnData(const Frame& frame);
  std::string_view OnSignal(const Frame& frame);
  std::string_view EndWrite(const Frame& frame);
  /// All its bytes are in place, or refused: answers it.
  std::string_view FinishWrite(const Frame& frame, Code code);
  /// Delivers it, or says why not.
  Code Deliver(const Signal& signal);
  /// kOk, or why this write may not begin.
  Code Judge(const Frame& frame, const LocalRegion* region) const;
  [[nodiscard]] Status Broken(int error) const;
  void Fail(Status reason);
  /// The peer broke the protocol.
  void Break(std::string_view violation);
  void Hang();
  bool WatchFor(uint32_t events);

  // --- Device memory
  ReceiveStage& StageFor(const LocalRegion& region);
  [[nodiscard]] bool MustQueue() const;
  std::string_view Queue(const Frame& frame, Code code);
  std::string_view Execute(const Frame& frame, Code code);
  void TakeArrivals();
  void AdvanceCopies();
  /// To be called after every change of what Continue goes on with.
  void CountWanting();
  void DivertWrite(Code code);

  LaneShared shared_;
  Owner& owner_;
  const GrantTable& grants_;
  LinkId link_;
  uint32_t index_;
  UniqueFd socket_;
  std::string peer_;  ///< For messages.
  std::string reason_;
  Outbox outbox_;
  Inbox inbox_;
  bool has_input_ = false;
  bool stalled_ = false;  ///< The payload that comes finds no block.
  bool blocked_ = false;
  uint32_t watched_ = 0;        ///< What the poller tells.
  bool wanting_ = false;        ///< Counted in LaneShared::wanting.
  int send_error_ = 0;          ///< errno of a send that failed; the lane ends once all is received.
  uint32_t next_sequence_ = 0;  ///< Of the peer's operations.
  Refusals own_refusals_;
  std::array<bool, kGrantSlots> own_first_{};  ///< The target has not heard of the last signal's end.
  Refusals refusals_;                          ///< Of the peer's operations.
  /// The write whose payload is being received.
  Code write_code_ = Code::kOk;
  const LocalRegion* write_region_ = nullptr;

  /// A frame of the peer's that is whole and waits until all that came before it is in place.
  struct Arrival {
    Frame frame;
    Code code = Code::kOk;
    uint32_t blocks = 0;  ///< That must be over.
  };
  std::unique_ptr<ReceiveStage> stage_;  ///< Made with the first payload for device memory, as the next.
  std::unique_ptr<Ring<Arrival>> arrivals_;
  uint32_t depth_;
};

}  // namespace weightcast::transport::tcp
