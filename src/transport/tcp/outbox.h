#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "transport/event_queue.h"
#include "transport/ring.h"
#include "transport/tcp/copiers.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/regions.h"
#include "transport/tcp/send_batch.h"
#include "transport/tcp/send_stage.h"

namespace weightcast::transport::tcp {

/// A peer's region as this side knows it.
struct ImportedRegion {
  uint32_t id = 0;
  uint32_t generation = 0;  ///< 0: no import has this index.
  uint64_t length = 0;
};

/// Where a read's bytes go.
struct ReadPlace {
  LocalRegion* region = nullptr;  ///< Null: nobody has asked for them.
  uint64_t offset = 0;
};

/// The sending half of a lane: own operations until they complete, answers to the peer's. Fixed in
/// size; whatever would need more is refused (own operations) or a violation (the peer's).
class Outbox {
 public:
  Outbox(LinkId link, uint32_t depth, EventQueue& events, Regions& regions, Copiers& copiers);

  // --- Own operations
  [[nodiscard]] bool HasRoom() const { return !operations_.full() && operations_.size() < depth_; }
  /// `op` has been checked; `local` is nullptr for a signal.
  void Push(const Op& op, LocalRegion* local, const ImportedRegion& remote);
  /// Empty, or how the peer has broken the protocol.
  std::string_view OnAck(uint32_t sequence);
  std::string_view OnResult(const Frame& frame);
  /// Where the next `length` bytes of this read go.
  ReadPlace ReadLanding(uint32_t sequence, uint64_t length);
  void OnData(uint32_t sequence, uint64_t length);
  /// The number of a read that is out.
  [[nodiscard]] bool IsRead(uint32_t sequence);
  /// Completes everything. Only while quiet().
  void FailAll(Code code);

  // --- Answers. False: the peer has more operations out than agreed.
  void Ack(uint32_t sequence);
  [[nodiscard]] bool Answer(uint32_t sequence, Code code);
  [[nodiscard]] bool Serve(uint32_t sequence, LocalRegion& region, uint64_t offset, uint64_t length);
  /// Lets a region go that peers may be reading; those reads end with kPermission.
  void Forget(const LocalRegion& region);

  /// Tells the peer that a lane is over. What has not gone out yet of the same lane is put together with it.
  void SayLaneOver(uint16_t lane, uint32_t generation, bool heard);

  // --- The socket
  /// Sends what the socket takes; sets `moved` if it took anything. kBlocked: there is more to send. kFailed:
  /// errno.
  SendBatch::Outcome Flush(int socket, bool& moved);
  /// An operation waits for its source's event: Flush must be called again to see it happen.
  [[nodiscard]] bool waits_for_event() const { return waits_for_event_; }

  // --- Copies out of device memory
  /// What is to be sent next is not here yet: Flush must be called again once a copy is over.
  [[nodiscard]] bool waits_for_copy() const { return waits_for_copy_; }
  /// Waits, and yet no copy of this lane is under way: a block was missing, and now there is one.
  [[nodiscard]] bool CanGoOn() { return waits_for_copy_ && stage_ != nullptr && stage_->CanGoOn(); }
  /// Learns which are over.
  void Advance() {
    if (stage_ != nullptr) stage_->Advance();
  }
  /// None is under way.
  [[nodiscard]] bool quiet() const { return stage_ == nullptr || stage_->quiet(); }
  /// The socket is closed: nothing leaves any more.
  void Abandon();

 private:
  enum class State : uint8_t { kQueued, kSent, kDone };
  struct Operation {
    OpKind kind = OpKind::kWrite;
    State state = State::kQueued;
    bool has_signal = false;
    bool first = false;
    uint32_t region = 0;
    uint32_t generation = 0;
    LocalRegion* local = nullptr;
    uint64_t local_offset = 0;
    uint64_t remote_offset = 0;
    uint64_t length = 0;
    uint64_t received = 0;  ///< kRead.
    uint64_t cookie = 0;
    GrantName grant;
    Signal signal;
    const DeviceEvent* after = nullptr;
  };
  struct Result {
    uint32_t sequence = 0;
    Code code = Code::kOk;
  };
  /// A read of the peer's that is being answered.
  struct Service {
    uint32_t sequence = 0;
    LocalRegion* region = nullptr;  ///< nullptr: deregistered meanwhile.
    uint64_t offset = 0;
    uint64_t left = 0;
    uint64_t loaded = 0;  ///< Of device memory: bytes of it that are loaded or sent.
    uint64_t length = 0;
    uint64_t begin = 0;  ///< Where it began.
  };

  struct LaneOver {
    uint16_t lane = 0;
    uint32_t generation = 0;
    bool heard = false;
  };

  void Complete(Operation& operation, Code code);
  void Retire();
  [[nodiscard]] bool IsOut(uint32_t sequence) const;
  void Fill();
  bool FillOperation();
  bool FillPayload();
  bool FillService();
  bool FillData(Service& service);
  void EndService(Code code);
  void UseStage(const LocalRegion& region);
  void LoadAhead();
  bool LoadOperation();
  bool LoadService();

  LinkId link_;
  uint32_t depth_;
  EventQueue& events_;
  Regions& regions_;
  Copiers& copiers_;
  static constexpr size_t kFew = 2;  ///< Operations under way that no others keep the socket busy behind.
  Ring<Operation> operations_;       ///< By sequence.
  uint32_t next_to_send_ = 0;
  uint32_t next_to_ack_ = 0;
  Ring<Result> results_;
  Ring<Service> services_;
  std::vector<LaneOver> lanes_over_;  ///< At most one for each lane.
  uint32_t ack_ = 0;
  bool ack_due_ = false;
  bool waits_for_event_ = false;
  SendBatch batch_;
  // Of device memory. What is loaded is sent in the order of loading, an operation never in two parts.
  std::unique_ptr<SendStage> stage_;  ///< Made with the first operation on device memory.
  bool waits_for_copy_ = false;
  uint64_t payload_left_ = 0;  ///< Of the operation next_to_send_, whose frame is out.
  uint32_t load_operation_ = 0;
  uint64_t load_offset_ = 0;  ///< Of that operation.
  uint32_t load_service_ = 0;
};

}  // namespace weightcast::transport::tcp
