#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "transport/refusals.h"
#include "transport/ring.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/link_shared.h"
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

/// This side's operations on one lane until they complete. Fixed in size: whatever would need more is
/// refused.
class OwnOperations {
 public:
  OwnOperations(const LinkShared& shared, SendStage& stage);

  [[nodiscard]] bool HasRoom() const { return !operations_.full() && operations_.size() < depth_; }
  /// So few are under way that no others keep the socket busy behind one of them.
  [[nodiscard]] bool few() const { return operations_.size() <= kFew; }
  /// `code`: whether `op` is in order. kOk when it goes out; else why it is refused. `local` is nullptr for a
  /// signal.
  Code Push(Op op, Code code, LocalRegion* local, const ImportedRegion& remote);
  /// Completes everything. Only while the stage is quiet().
  void FailAll(Code code);

  // --- The peer's answers. Not empty: how it has broken the protocol.
  std::string_view OnAck(uint32_t sequence);
  std::string_view OnResult(const Frame& frame);
  /// Where the next `length` bytes of this read go.
  [[nodiscard]] ReadPlace ReadLanding(uint32_t sequence, uint64_t length) const;
  void OnData(uint32_t sequence, uint64_t length) { operations_[sequence].received += length; }
  /// The number of a read that is out.
  [[nodiscard]] bool IsRead(uint32_t sequence) const;

  // --- Sending. What is loaded is sent in the order of loading, an operation never in two parts.
  /// Adds the next operation to a batch with room. False: none can go now.
  bool Fill(SendBatch& batch);
  /// The frame of an operation is out, and not all of its payload: nothing else may follow yet.
  [[nodiscard]] bool in_payload() const { return payload_left_ > 0; }
  /// More of that payload. False: not all of it.
  bool FillPayload(SendBatch& batch);
  /// The next one waits for its source's event.
  [[nodiscard]] bool waits_for_event() const { return waits_for_event_; }
  /// Begins to copy what will be sent next. False: none, or no room.
  bool Load();
  /// An operation is loaded in part: nothing else may be loaded before the rest.
  [[nodiscard]] bool loading() const { return load_offset_ > 0; }

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

  Code Refusal(Op& op, Code code);
  void Complete(Operation& operation, Code code);
  void Retire();
  /// It is out: sent, not answered.
  [[nodiscard]] bool IsOut(uint32_t sequence) const;
  [[nodiscard]] static bool IsStaged(const Operation& operation) {
    return operation.kind == OpKind::kWrite && operation.local->device != nullptr && operation.length > 0;
  }

  LinkId link_;
  uint32_t depth_;
  EventQueue& events_;
  Regions& regions_;
  Copiers& copiers_;
  SendStage& stage_;
  static constexpr size_t kFew = 2;
  Ring<Operation> operations_;  ///< By sequence.
  uint32_t next_to_send_ = 0;
  uint32_t next_to_ack_ = 0;
  bool waits_for_event_ = false;
  uint64_t payload_left_ = 0;  ///< Of the operation next_to_send_, whose frame is out.
  uint32_t load_operation_ = 0;
  uint64_t load_offset_ = 0;  ///< Of that operation.
  Refusals refusals_;
  std::array<bool, kGrantSlots> first_{};  ///< The last signal's end has not come to the target.
};

}  // namespace weightcast::transport::tcp
