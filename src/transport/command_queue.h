#pragma once

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "base/poller.h"

namespace weightcast::transport {

/// Commands that any thread leaves for the one that drives progress, and its wake-up where it sleeps.
template <typename Command>
class CommandQueue {
 public:
  Status Create() {
    WC_ASSIGN_OR_RETURN(wake_, WakeFd::Create());
    return Status::Ok();
  }
  /// Readable after a command was put while armed.
  [[nodiscard]] int wake_fd() const { return wake_.fd(); }

  /// Any thread. Together with what belongs to the command: `lock` is held of mutex().
  void Put(Command command, const std::lock_guard<std::mutex>& lock) {
    (void)lock;
    commands_.push_back(std::move(command));
    // Sequentially consistent, as in Arm: either it sees this command, or this sees that it is armed.
    pending_.store(true, std::memory_order_seq_cst);
    if (!armed_.load(std::memory_order_seq_cst)) return;
    wake_.Wake();
    woken_.store(true, std::memory_order_release);  // Last: whoever sees it drains what was written.
  }
  [[nodiscard]] std::mutex& mutex() { return mutex_; }

  // --- The thread that drives progress
  /// Cheap: one load.
  [[nodiscard]] bool pending() const { return pending_.load(std::memory_order_acquire); }
  void Take(std::vector<Command>& commands) {
    commands.clear();
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
    pending_.store(false, std::memory_order_release);
  }
  /// From here on commands make wake_fd readable. False: some are here already.
  bool Arm() {
    armed_.store(true, std::memory_order_seq_cst);
    if (!pending_.load(std::memory_order_seq_cst)) return true;
    armed_.store(false, std::memory_order_relaxed);
    return false;
  }
  void Disarm() {
    armed_.store(false, std::memory_order_relaxed);
    // A wake-up that comes after this is drained by the next.
    if (woken_.load(std::memory_order_acquire) && woken_.exchange(false)) wake_.Drain();
  }

 private:
  std::mutex mutex_;
  std::vector<Command> commands_;
  std::atomic<bool> armed_ = false;
  std::atomic<bool> woken_ = false;  ///< wake_ is readable, or is about to be.
  std::atomic<bool> pending_ = false;
  WakeFd wake_;
};

}  // namespace weightcast::transport
