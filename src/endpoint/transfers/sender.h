#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "endpoint/transfers/chunks.h"
#include "endpoint/transfers/imports.h"
#include "endpoint/transfers/registrations.h"
#include "endpoint/transfers/send_queue.h"
#include "endpoint/transfers/timers.h"
#include "endpoint/transfers/transfer_state.h"
#include "endpoint/transfers/user_callbacks.h"
#include "transport/transport.h"

namespace weightcast::endpoint {

/// Sends one connection's transfers over the lanes of its link: cuts them into chunks as windows open,
/// gives each chunk to the lane with the fewest bytes under way, and gives those of a lost lane to the
/// others. Belongs to the holder of progress. Nothing is allocated or locked for a chunk.
class Sender {
 public:
  using State = Transfer::State;

  struct Hooks {
    Timers& timers;
    Registrations& regions;
    Imports& imports;
    UserCallbacks& callbacks;
    std::string peer;  ///< "trainer 0 (10.0.0.1:4711)", for messages.
  };
  struct Path {
    transport::Transport* transport = nullptr;
    transport::LinkId link{};
    uint32_t lanes = 1;
    uint32_t window = 16;                  ///< Chunks under way on one lane.
    uint64_t longest_host = UINT64_MAX;    ///< Of one operation.
    uint64_t longest_device = UINT64_MAX;  ///< Of one operation with device memory.
  };

  explicit Sender(Hooks hooks) : hooks_(std::move(hooks)) {}
  void Start(const Path& path);

  /// Takes a transfer; from here on it ends and is fenced.
  void Add(TransferRef transfer);
  /// Sees to its time-out, unless it has ended: after the first Pump, since what ends at once needs none.
  void WatchDeadline(State& transfer);
  /// Gives the transport what it takes; whether it took anything.
  bool Pump();
  /// Transfers wait for a lane, or for room on one.
  [[nodiscard]] bool wants_pump() const { return !waiting_.empty() || partial_ > 0; }
  [[nodiscard]] bool in_flight() const { return newest_ != nullptr; }
  [[nodiscard]] uint32_t lanes_up() const;

  void OnCompletion(const transport::Completion& completion);
  void OnLaneDown(uint32_t lane);
  void OnLaneUp(uint32_t lane);
  /// Nothing of the link is under way any more: fences what is left.
  void OnLinkClosed();

  /// Ends it, if it has not ended; it is fenced when the transport has given back all of it.
  void End(State& transfer, Status outcome);
  /// And whatever is added later.
  void EndAll(const Status& outcome);
  void EndUsing(const RegisteredMemory& registration);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kOpsAtOnce = 64;
  /// A chunk lost more often than this is no longer a lost lane's fault.
  static constexpr uint32_t kMaxAttempts = 8;

  struct Lane {
    bool up = true;
    uint32_t chunks = 0;
    uint64_t bytes = 0;
    size_t batch = 16;         ///< Operations to offer at once: what it took last time tells.
    uint32_t partial = kNone;  ///< Slot of a chunk of which the transport took only a part so far.
  };
  /// A chunk at the transport.
  struct Slot {
    State* transfer = nullptr;  ///< Null: free.
    uint32_t generation = 0;
    uint32_t lane = 0;
    uint32_t next_free = kNone;
    Resend chunk{};
    uint64_t bytes = 0;
    uint64_t checksum = 0;
    ChunkWalk walk{};  ///< The parts not yet posted.
    bool posted_all = false;
    bool lost = false;  ///< The lane failed it.
    uint32_t posted = 0;
    uint32_t completed = 0;
    Code code = Code::kOk;
  };

  void AbandonPartial(Lane& lane);
  Lane* BestLane();
  uint32_t TakeSlot(State& transfer, Lane& lane);
  void MeasureChunk(Slot& slot, const State& transfer);
  bool PostSlot(uint32_t index);
  size_t CutOps(const Slot& slot, uint64_t cookie, size_t most);
  void FinishIfDone(uint32_t index);
  void FinishChunk(State& transfer, const Slot& slot);
  void Fence(State& transfer);
  void OnDeadline();

  Hooks hooks_;
  Path path_;
  std::vector<Lane> lanes_;
  std::vector<Slot> slots_;
  uint32_t free_slot_ = kNone;
  uint32_t partial_ = 0;  ///< Lanes with a partial chunk.
  SendQueue waiting_;
  State* oldest_ = nullptr;  ///< All that are not fenced; we hold a reference to each.
  State* newest_ = nullptr;
  TimePoint next_deadline_ = TimePoint::max();  ///< No later than any deadline; for this the timer is set.
  TimerId deadline_timer_;
  Status over_;  ///< Of EndAll.
  std::array<transport::Op, kOpsAtOnce> ops_;
  std::array<ChunkWalk, kOpsAtOnce + 1> walks_;  ///< Where each of ops_ was cut from, and the end.
};

}  // namespace weightcast::endpoint
