#pragma once

#include <cstdint>

#include "transport/shm/layout.h"

/// How a target keeps late copies out although the writer's processor does the copying:
///
///     writer                                    target
///     busy = odd                                grant[slot] = 0   (or the region's generation = 0)
///     grant[slot] == id? generation as named?   busy even? -> fenced
///     copy one piece                            else fenced once busy has changed, or once the
///     busy = even                               writer is proven dead
///
/// Each side writes its word and then reads the other's, all sequentially consistent: if the target reads
/// busy before the writer's odd store, then the writer reads the grant after the target has closed it.
namespace weightcast::transport::shm {

/// The writer's end. One thread at a time.
class WriterFence {
 public:
  explicit WriterFence(Word& busy) : busy_(&busy) {}
  void Enter() { busy_->store(++value_, std::memory_order_seq_cst); }
  void Leave() { busy_->store(++value_, std::memory_order_seq_cst); }

 private:
  Word* busy_;
  uint64_t value_ = 0;  ///< Ours, so that the target cannot make odd and even change places.
};

/// The target's end: made after the word that forbids has been stored (seq_cst).
class FenceWait {
 public:
  explicit FenceWait(const Word& busy) : seen_(busy.load(std::memory_order_seq_cst)) {}
  /// True when no copy that began before this object was made can still be under way.
  [[nodiscard]] bool Over(const Word& busy) const {
    return seen_ % 2 == 0 || busy.load(std::memory_order_seq_cst) != seen_;
  }

 private:
  uint64_t seen_;
};

/// The same for copies that the writer's devices make. Several are under way at once, so they are counted:
/// `begun` is raised before the writer looks at the words that forbid, `ended` when copies are over, in the
/// order in which they were begun. A copy engine goes on when its process is dead: see Link.
class DeviceFenceWait {
 public:
  explicit DeviceFenceWait(const Word& begun) : begun_(begun.load(std::memory_order_seq_cst)) {}
  /// As FenceWait::Over.
  [[nodiscard]] bool Over(const Word& ended) const { return ended.load(std::memory_order_seq_cst) >= begun_; }

 private:
  uint64_t begun_;
};

}  // namespace weightcast::transport::shm
