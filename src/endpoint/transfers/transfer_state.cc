#include "endpoint/transfers/transfer_state.h"

#include <utility>

namespace weightcast {

namespace {

/// A long list's room is not kept for a short one.
template <typename T>
void Empty(std::vector<T>& list) {
  constexpr size_t kKept = 256;
  list.clear();
  if (list.capacity() > kKept) std::vector<T>().swap(list);  // Assigning {} would keep the room.
}

}  // namespace

void Transfer::State::Run() { owner->Begin(endpoint::Share(*this)); }

void Transfer::State::DropReference() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const auto keep = std::move(owner);  // It may go with us.
  keep->transfers().GiveBack(this);
}

void Transfer::State::Clear() {
  owner.reset();
  connection.reset();
  options.on_end = nullptr;  // Begin sets the others; a new TransferOptions would read the clock.
  options.after.reset();
  Empty(pieces);
  Empty(locals);
  Empty(remotes);
  Empty(resend);
  bytes = 0;
  chunks = 1;
  device = false;
  phase.Reset();
  outcome = Status::Ok();
  next = {};
  next_chunk = done = outstanding = 0;
}

namespace endpoint {

TransferPool::~TransferPool() {
  for (auto* state = free_.load(std::memory_order_acquire); state != nullptr;) {
    delete std::exchange(state, state->next_free_);
  }
}

/// Takes all and gives the rest back: nobody can have changed what is ours meanwhile.
TransferRef TransferPool::Take() {
  Transfer::State* const first = free_.exchange(nullptr, std::memory_order_acquire);
  if (first == nullptr) return TransferRef::Adopt(new Transfer::State);
  count_.fetch_sub(1, std::memory_order_relaxed);
  if (Transfer::State* const rest = std::exchange(first->next_free_, nullptr); rest != nullptr) {
    Transfer::State* empty = nullptr;
    if (!free_.compare_exchange_strong(empty, rest, std::memory_order_release)) {
      Transfer::State* last = rest;
      while (last->next_free_ != nullptr) last = last->next_free_;
      Push(rest, last);
    }
  }
  first->references_.store(1, std::memory_order_relaxed);
  return TransferRef::Adopt(first);
}

void TransferPool::GiveBack(Transfer::State* unused) {
  unused->Clear();
  if (count_.fetch_add(1, std::memory_order_relaxed) >= kMostFree) {
    count_.fetch_sub(1, std::memory_order_relaxed);
    delete unused;
    return;
  }
  Push(unused, unused);
}

void TransferPool::Push(Transfer::State* first, Transfer::State* last) {
  Transfer::State* newest = free_.load(std::memory_order_relaxed);
  do {
    last->next_free_ = newest;
  } while (!free_.compare_exchange_weak(newest, first, std::memory_order_release, std::memory_order_relaxed));
}

}  // namespace endpoint
}  // namespace weightcast
