#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/ring.h"
#include "transport/tcp/receive_stage.h"
#include "transport/tcp/regions.h"

namespace weightcast::transport::tcp {

/// Device memory of one lane on its way into the socket: a device copies it into pinned blocks, a few ahead
/// of what the socket has taken. They leave in the order in which they were loaded. The holder of progress
/// alone; no driver call.
class SendStage {
 public:
  /// What a block is a part of, by its number.
  struct Owner {
    enum class Kind : uint8_t { kOperation, kService };
    Kind kind = Kind::kOperation;
    uint32_t number = 0;
    friend bool operator==(const Owner&, const Owner&) = default;
  };
  explicit SendStage(const StageParts& parts);

  [[nodiscard]] size_t block() const { return parts_.staging.block(); }
  /// Begins to copy at most a block. False: no room now.
  bool Load(LocalRegion& region, uint64_t offset, uint64_t length, const Owner& owner);

  struct Piece {
    std::byte* bytes = nullptr;
    uint64_t length = 0;
  };
  /// The next piece is this one's, and here.
  [[nodiscard]] bool IsNext(const Owner& owner);
  /// That piece; its bytes stay until Release.
  Piece Hand();
  /// The socket has taken all that was handed.
  void Release();
  /// No piece of this service leaves any more.
  void GiveUp(const Owner& owner);
  /// No piece leaves any more.
  void Abandon();
  /// Ends what can be. True if anything was.
  bool Advance();
  /// Nothing copies.
  [[nodiscard]] bool quiet();
  /// Nothing copies, and something could begin to.
  [[nodiscard]] bool CanGoOn() { return blocks_.empty() && parts_.staging.CanSend(0); }

 private:
  static constexpr size_t kBlocks = 4;
  struct Block {
    enum class State : uint8_t { kLoading, kLoaded, kHanded, kDone };
    State state = State::kLoading;
    bool given_up = false;
    std::byte* bytes = nullptr;
    uint64_t length = 0;
    Owner owner;
    LocalRegion* region = nullptr;
    Copier* copier = nullptr;
    uint64_t ticket = 0;
  };
  Block* Next();

  StageParts parts_;
  Ring<Block> blocks_{kBlocks};
};

}  // namespace weightcast::transport::tcp
