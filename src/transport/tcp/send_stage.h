#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/ring.h"
#include "transport/tcp/copiers.h"
#include "transport/tcp/local_region.h"

namespace weightcast::transport::tcp {

/// Device memory of one lane on its way into the socket: a device copies it into pinned blocks, a few ahead
/// of what the socket has taken. They leave in the order in which they were loaded. Holds nothing before the
/// first Use. The holder of progress alone; no driver call.
class SendStage {
 public:
  /// What a block is a part of, by its number.
  struct Owner {
    enum class Kind : uint8_t { kOperation, kRead };
    Kind kind = Kind::kOperation;
    uint32_t number = 0;
    friend bool operator==(const Owner&, const Owner&) = default;
  };
  SendStage(Copiers& copiers, Regions& regions) : copiers_(copiers), regions_(regions) {}

  /// Before any of it is sent; nothing for host memory.
  void Use(const LocalRegion& region);
  [[nodiscard]] bool in_use() const { return staging_ != nullptr; }
  [[nodiscard]] size_t block() const { return staging_->block(); }
  /// Begins to copy at most a block. False: no room now.
  bool Load(LocalRegion& region, uint64_t offset, uint64_t length, const Owner& owner);

  struct Piece {
    std::byte* bytes = nullptr;
    uint64_t length = 0;
  };
  /// The next piece is this one's, and here. If not, the stage waits() for it.
  [[nodiscard]] bool IsNext(const Owner& owner);
  /// That piece; its bytes stay until Release.
  Piece Hand();
  /// The socket has taken all that was handed, and nobody waits.
  void Release();
  /// No piece of this read leaves any more.
  void GiveUp(const Owner& owner);
  /// No piece leaves any more.
  void Abandon();
  /// Ends what can be. True if anything was.
  bool Advance();
  /// Nothing copies.
  [[nodiscard]] bool quiet() const;
  /// What is to be sent next is not here yet.
  [[nodiscard]] bool waits() const { return waits_; }
  /// Waits, and yet no copy is under way: a block was missing, and now there is one.
  [[nodiscard]] bool CanGoOn() { return waits_ && blocks_.empty() && staging_->CanSend(0); }

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
    device::Engine* engine = nullptr;
    uint64_t ticket = 0;
  };
  Block* Next();

  Copiers& copiers_;
  Regions& regions_;
  Staging* staging_ = nullptr;
  Ring<Block> blocks_;
  bool waits_ = false;
};

}  // namespace weightcast::transport::tcp
