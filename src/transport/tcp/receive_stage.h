#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/ring.h"
#include "transport/tcp/copiers.h"
#include "transport/tcp/inbox.h"
#include "transport/tcp/local_region.h"

namespace weightcast::transport::tcp {

/// Payloads of one lane on their way into device memory: received into pinned blocks, from there copied by
/// the device. A block is copied when it is full or its payload ends; they are over in the order of
/// receiving. Until a block's copy has begun it may be dropped; afterwards its region is in use. Holds
/// nothing before the first Begin. The holder of progress alone; no driver call.
class ReceiveStage final : public PayloadSink {
 public:
  /// Whose bytes come.
  enum class For : uint8_t { kPeersWrite, kOwnRead };
  ReceiveStage(Copiers& copiers, Regions& regions) : copiers_(copiers), regions_(regions) {}

  [[nodiscard]] bool in_use() const { return staging_ != nullptr; }
  /// The next payload goes here.
  void Begin(LocalRegion& region, uint64_t offset, const GrantName& grant, For whom);
  std::span<std::byte> Room() override;
  void Filled(size_t bytes) override;

  /// Begins and ends what can be. True if anything was.
  bool Advance();
  /// Copies what the block holds that is being filled: its payload is whole, or it shall be free soon.
  void Yield();
  /// Somebody needs the block.
  [[nodiscard]] bool MustYield() { return Open() != nullptr && staging_->hungry(); }
  /// Nothing under this grant, or of the peer's into this region, is begun any more.
  void Fence(const GrantName& grant);
  void Forget(const LocalRegion& region);
  /// Nothing at all is.
  void Abandon();

  /// Blocks so far; those below are over where Over says so.
  [[nodiscard]] uint32_t newest() const { return blocks_.tail(); }
  [[nodiscard]] bool Over(uint32_t blocks) const {
    return static_cast<int32_t>(blocks_.head() - blocks) >= 0;
  }
  /// Holds nothing.
  [[nodiscard]] bool empty() const { return blocks_.empty(); }
  /// A copy has failed: what was received does not count.
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  static constexpr size_t kBlocks = 4;
  struct Block {
    enum class State : uint8_t { kFilling, kFull, kCopied, kDropped };
    State state = State::kFilling;
    std::byte* bytes = nullptr;
    size_t filled = 0;
    std::byte* to = nullptr;
    LocalRegion* region = nullptr;
    GrantName grant;
    For whom = For::kPeersWrite;
    device::Engine* engine = nullptr;
    uint64_t ticket = 0;
  };
  /// The newest block if its copy has not begun; nullptr otherwise.
  Block* Open();
  bool Submit(Block& block);
  void Drop(Block& block);

  Copiers& copiers_;
  Regions& regions_;
  Staging* staging_ = nullptr;
  Ring<Block> blocks_;
  bool failed_ = false;
  // The payload that is being received.
  LocalRegion* region_ = nullptr;
  std::byte* to_ = nullptr;
  GrantName grant_;
  For whom_ = For::kPeersWrite;
};

}  // namespace weightcast::transport::tcp
