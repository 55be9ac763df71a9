#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "p2p/state.h"
#include "weightcast/status.h"

namespace weightcast::p2p {

/// The registered memory of this process.
class Memories {
 public:
  explicit Memories(State& state) : s_(state) {}

  // Without the mutex.
  Result<MemoryPtr> New(std::span<std::byte> bytes, bool temporary);
  /// `up_to_end`: a length beyond the end of the memory means up to its end.
  Result<OwnSlice> Resolve(const LocalSlice& local, bool up_to_end);
  /// Of memory of a device the driver's number for its allocation; 0 of the host's.
  Result<uint64_t> IdentityOf(const Memory& memory);

  // Under the mutex.
  /// Tells the peers that know it.
  void Drop(const Memory& memory);
  [[nodiscard]] Status StillRegistered(const Operation& operation) const;
  /// To each peer once.
  void TellOf(Peer& peer, const Memory& memory);

 private:
  State& s_;
  uint64_t last_ = 0;
};

}  // namespace weightcast::p2p
