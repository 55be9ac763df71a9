#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "weightcast/clock.h"
#include "worker/landing.h"

namespace weightcast::worker {

/// Spare buffers that a stopped process may still write to. Each is kept, and neither granted nor read, until
/// that process goes on or has ended. The loop's.
class Quarantine {
 public:
  static constexpr size_t kMost = 2;  ///< At once: each is as large as the weights.
  struct Buffer {
    std::shared_ptr<LandingMemory> memory;
    std::string writers;  ///< Who holds it, for messages.
  };

  [[nodiscard]] bool full() const { return buffers_.size() >= kMost; }
  [[nodiscard]] bool empty() const { return buffers_.empty(); }
  void Keep(std::shared_ptr<LandingMemory> memory, std::string writers);
  /// Those that nobody can write to any more. To free them takes long.
  std::vector<Buffer> TakeFree(TimePoint deadline);
  /// Waits for the rest until `deadline`; what is held then is never given back.
  void Abandon(TimePoint deadline);

 private:
  std::vector<Buffer> buffers_;
};

}  // namespace weightcast::worker
