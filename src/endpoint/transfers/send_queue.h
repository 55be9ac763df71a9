#pragma once

#include <cstddef>

#include "endpoint/transfers/transfer_state.h"

namespace weightcast::endpoint {

/// The transfers of one sender that have chunks to send, the oldest first; each is in it once at most. It
/// holds no references: a transfer is removed before it ends. Belongs to the holder of progress.
class SendQueue {
 public:
  [[nodiscard]] bool empty() const { return first_ == nullptr; }
  /// Nothing, if it is in the queue already.
  void Add(Transfer::State& transfer);
  /// Nothing, if it is not in the queue.
  void Remove(Transfer::State& transfer);
  /// Whose chunk is the next; the first few take turns. Only while the queue is not empty.
  Transfer::State& Next();

 private:
  /// Transfers served in turn: a short one does not wait for all of a long one, and the first ones end first.
  static constexpr size_t kInterleaved = 4;

  Transfer::State* first_ = nullptr;
  Transfer::State* last_ = nullptr;
  size_t count_ = 0;
  size_t turn_ = 0;
};

}  // namespace weightcast::endpoint
