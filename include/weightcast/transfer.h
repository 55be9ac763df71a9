#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "weightcast/clock.h"
#include "weightcast/device.h"
#include "weightcast/grant.h"
#include "weightcast/region.h"
#include "weightcast/status.h"

namespace weightcast {

/// One contiguous piece of a transfer. Both slices are equally long.
struct Piece {
  LocalSlice local;
  RemoteSlice remote;
};

struct TransferOptions {
  GrantName grant{};  ///< The target's permission; {} for regions open to all (kReadWrite).
  /// Number of this transfer under the grant, below 2²⁴; set chunk by chunk at the target.
  std::optional<uint32_t> signal{};
  /// It counts as so many transfers, those from `signal` on: 1 to 256. They arrive together.
  uint32_t signals = 1;
  bool checksum = false;  ///< Signals carry checksums of their chunks.
  /// Writes: the local memory is not read before this is over. Null: it may be read at once.
  std::shared_ptr<const DeviceEvent> after{};
  TimePoint deadline = In(60.0);  ///< Ends as kTimedOut then, if not before.
  /// Called once, when the transfer has ended. Must not block.
  std::function<void(const Status&)> on_end{};
};

/// A handle to one asynchronous write or read. Copies name the same transfer; dropping all of them
/// changes nothing. Thread safe.
class Transfer {
 public:
  class State;
  /// For the endpoint: takes over one reference.
  explicit Transfer(State* state) : state_(state) {}
  Transfer(const Transfer& other);
  Transfer(Transfer&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  Transfer& operator=(Transfer other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~Transfer();

  /// Ended: the outcome is known. The local memory may still be read or written by the transport until
  /// fenced() (they differ only after Cancel, a time-out or a failure).
  [[nodiscard]] bool ended() const;
  /// The local memory is the caller's again, and of a write nothing lands at the peer any more; after the end
  /// of the connection the peer alone knows the latter, from its own grant or region.
  [[nodiscard]] bool fenced() const;
  /// Ends no later than the transfer's own deadline or the peer's lease. Drives progress meanwhile.
  /// `deadline` ends only the waiting: kTimedOut, the transfer goes on.
  Status Wait(TimePoint deadline = kNever);
  Status WaitFenced(TimePoint deadline = kNever);
  /// Calls `then` once when the transfer has ended; soon, if it has already. As
  /// TransferOptions::on_end, for those who learn only later that they have to wait; each of several calls
  /// is served. Must not block. Never called if the endpoint is closed already: look at ended() afterwards.
  void OnEnd(std::function<void(const Status&)> then);
  /// Ends it as kCancelled if it has not ended.
  void Cancel();
  [[nodiscard]] uint64_t bytes() const;

 private:
  State* state_;  ///< Null only when moved from.
};

}  // namespace weightcast
