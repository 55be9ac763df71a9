#pragma once

#include <atomic>
#include <cstdint>

namespace weightcast::endpoint {

/// Who holds progress: a caller, the endpoint's own thread, or nobody. No thread waits for it.
class ProgressLock {
 public:
  /// False: somebody holds it.
  bool TryTake() {
    // The load saves the others a cache line. Sequentially consistent like Push and the look at the queue
    // after letting go: one of the two sides sees the other.
    return !held() && !held_.exchange(true, std::memory_order_seq_cst);
  }
  /// The same, for the thread.
  bool TryTakeAsThread();
  /// For a caller who waits: the thread yields it, if it has it. False: the thread is in a long step, or
  /// another caller holds it.
  bool TakeFromThread();
  void Release() {
    by_thread_.store(false, std::memory_order_relaxed);
    held_.store(false, std::memory_order_seq_cst);
  }
  /// By the thread, to a caller who waits. Should none take it, this returns soon.
  void YieldToCaller();
  [[nodiscard]] bool held() const { return held_.load(std::memory_order_seq_cst); }
  [[nodiscard]] bool by_thread() const { return by_thread_.load(std::memory_order_relaxed); }
  /// A caller waits for the thread to yield it.
  [[nodiscard]] bool wanted() const { return wanted_.load(std::memory_order_relaxed) > 0; }

 private:
  std::atomic<bool> held_{false};
  /// Written by holders, whom held_ puts in order; TakeFromThread may see it late.
  std::atomic<bool> by_thread_{false};
  std::atomic<uint32_t> wanted_{0};  ///< Callers in TakeFromThread.
};

}  // namespace weightcast::endpoint
