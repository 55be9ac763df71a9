#pragma once

#include <cstddef>
#include <cstdint>

#include "device/engines.h"
#include "transport/shm/records.h"

namespace weightcast::transport::shm {

/// A pull that the peer has ordered, from its arrival to its answer.
struct Pull {
  PullRecord record;
  SignalRecord signal;
  bool has_signal = false;
  Code code = Code::kOk;  ///< Why no more of it is copied, or why what was copied does not count.
  std::byte* to = nullptr;
  uint64_t submitted = 0;            ///< Bytes.
  device::Engine* engine = nullptr;  ///< That copies it; null: nothing was submitted, or not to a device.
  device::Engine* next_engine = nullptr;  ///< That would copy it.
  uint64_t ticket = 0;                    ///< Of the last batch with bytes of it.

  [[nodiscard]] bool from_host() const { return (record.flags & kFromHost) != 0; }
  [[nodiscard]] bool wants_signal() const { return (record.flags & kSignalled) != 0 && !has_signal; }
  /// No more of it is to be submitted.
  [[nodiscard]] bool whole() const { return submitted == record.length || code != Code::kOk; }
  /// Nothing of it moves any more, and nothing more of it will.
  [[nodiscard]] bool Over() const { return whole() && (engine == nullptr || engine->Over(ticket)); }
};

}  // namespace weightcast::transport::shm
