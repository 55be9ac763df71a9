#pragma once

#include <cstdint>
#include <vector>

#include "transport/ring.h"
#include "transport/tcp/local_region.h"
#include "transport/tcp/send_batch.h"
#include "transport/tcp/send_stage.h"

namespace weightcast::transport::tcp {

/// What one lane owes the peer: acknowledgements, results and the data of the peer's reads, and word of
/// lanes that are over. Fixed in size: a peer that would need more has broken the protocol.
class Replies {
 public:
  Replies(uint32_t depth, SendStage& stage) : depth_(depth), stage_(stage), results_(depth), reads_(depth) {}

  void Ack(uint32_t sequence);
  // False: the peer has more operations out than agreed.
  [[nodiscard]] bool Answer(uint32_t sequence, Code code);
  [[nodiscard]] bool Serve(uint32_t sequence, LocalRegion& region, uint64_t offset, uint64_t length);
  /// Tells the peer that a lane is over. What has not gone out yet of the same lane is put together with it.
  void SayLaneOver(uint16_t lane, uint32_t generation, bool heard);
  /// Lets a region go that the peer may be reading; those reads end with kPermission.
  void Forget(const LocalRegion& region);

  // --- Sending
  /// Adds all but reads to a batch, as far as it has room.
  void Fill(SendBatch& batch);
  /// The next piece of a read, to a batch with room. False: none can go now.
  bool FillRead(SendBatch& batch);
  [[nodiscard]] bool reading() const { return !reads_.empty(); }
  /// Begins to copy what will be sent next. False: none, or no room.
  bool Load();

 private:
  struct Result {
    uint32_t sequence = 0;
    Code code = Code::kOk;
  };
  /// A read of the peer's that is being answered.
  struct Read {
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
  bool FillData(SendBatch& batch);
  void AddResult(SendBatch& batch, const Result& result);

  uint32_t depth_;
  SendStage& stage_;
  Ring<Result> results_;
  Ring<Read> reads_;
  std::vector<LaneOver> lanes_over_;  ///< At most one for each lane.
  uint32_t ack_ = 0;
  bool ack_due_ = false;
  uint32_t load_read_ = 0;
};

}  // namespace weightcast::transport::tcp
