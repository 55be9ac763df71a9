#include "endpoint/transfers/send_queue.h"

#include <algorithm>
#include <utility>

namespace weightcast::endpoint {

void SendQueue::Add(Transfer::State& transfer) {
  if (std::exchange(transfer.waiting, true)) return;
  transfer.next_waiting = nullptr;
  (last_ == nullptr ? first_ : last_->next_waiting) = &transfer;
  last_ = &transfer;
  ++count_;
}

/// Few stand before it: only the first kInterleaved are served, and what ends early is rare.
void SendQueue::Remove(Transfer::State& transfer) {
  if (!std::exchange(transfer.waiting, false)) return;
  Transfer::State* before = nullptr;
  for (Transfer::State* at = first_; at != &transfer; at = at->next_waiting) before = at;
  (before == nullptr ? first_ : before->next_waiting) = transfer.next_waiting;
  if (last_ == &transfer) last_ = before;
  --count_;
}

Transfer::State& SendQueue::Next() {
  Transfer::State* next = first_;
  for (size_t skip = turn_++ % std::min(count_, kInterleaved); skip > 0; --skip) next = next->next_waiting;
  return *next;
}

}  // namespace weightcast::endpoint
