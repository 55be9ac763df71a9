#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "endpoint/transfers/flag.h"
#include "weightcast/status.h"

namespace weightcast::endpoint {

/// One connection's notices in both directions: the credit for what goes out, the queue of what has come
/// (docs/wire.md). Holds no more than the window, whatever the peer does.
class Notices {
 public:
  /// Cost of the notices of one direction that are on their way or wait to be taken.
  static constexpr uint64_t kWindow = 256 << 10;
  /// An empty one needs memory too.
  static constexpr uint64_t CostOf(size_t bytes) { return bytes + 64; }

  // --- Any thread -----------------------------------------------------------------------------
  /// Takes credit for a notice of this length; false: there is not enough.
  bool Reserve(size_t bytes);
  /// The oldest that has come.
  std::optional<std::string> Take();
  /// True once for each credit that is to be sent: the caller sees to NextCredit.
  bool CreditDue();
  /// Each grows when there may be credit, or a notice; and at the end of the connection.
  Flag& credited() { return credited_; }
  Flag& arrived() { return arrived_; }

  // --- Holder of progress -----------------------------------------------------------------------
  /// A notice for which credit was taken goes to the channel.
  void OnSent(size_t bytes) { sent_ += CostOf(bytes); }
  /// kProtocol: it cannot have taken this.
  Status OnCredit(std::string_view payload);
  /// True if nothing waited before it. kProtocol: too long, or beyond the credit.
  Result<bool> OnNotice(std::string bytes);
  /// What the next kCredit says.
  std::string NextCredit();
  /// The connection has ended: wakes everyone who waits.
  void OnEnd();

 private:
  static void Grow(Flag& flag) { flag.Set(flag.value() + 1); }

  // Out; costs of all notices since the beginning.
  std::atomic<uint64_t> reserved_{0};
  std::atomic<uint64_t> peer_took_{0};  ///< Written by the holder of progress.
  uint64_t sent_ = 0;                   ///< Holder of progress.
  Flag credited_;

  // In; the same.
  uint64_t received_ = 0;  ///< Holder of progress.
  std::mutex mutex_;       ///< Guards the four below.
  std::deque<std::string> queue_;
  uint64_t taken_ = 0;
  uint64_t told_ = 0;  ///< Of taken_, to the peer.
  bool telling_ = false;
  Flag arrived_;
};

}  // namespace weightcast::endpoint
