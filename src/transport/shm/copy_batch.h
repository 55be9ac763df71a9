#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "device/engines.h"
#include "transport/shm/gathered_copies.h"

namespace weightcast::transport::shm {

/// Most bytes of one staged piece, and how many a batch of several gathers: small enough that the source's
/// device and the target's work at the same time.
inline constexpr uint64_t kStagedPiece = uint64_t{1} << 20;
/// The same for a ring of that length: while one piece is copied out, the next ones are copied in.
inline uint64_t StagedPieceOf(uint64_t ring) { return std::min(kStagedPiece, ring / 4); }

/// Copies of one engine that are gathered and submitted together. What was added is submitted before the
/// holder of progress does anything else with that engine.
class CopyBatch {
 public:
  /// The ticket of the batch that `copy`, of at most kStagedPiece, will be in; nullopt: the engine is full.
  /// Submits what cannot wait for it: a batch takes nothing more once it has `most` bytes.
  std::optional<uint64_t> Add(device::Engine& engine, const device::Copy& copy, uint64_t most);
  void Submit();

 private:
  std::array<device::Copy, kDeviceBatch> copies_;
  size_t count_ = 0;
  uint64_t bytes_ = 0;
  device::Engine* engine_ = nullptr;
};

}  // namespace weightcast::transport::shm
