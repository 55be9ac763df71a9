#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tools/bench/p2p/messages.h"
#include "tools/common/device_block.h"
#include "weightcast/memory.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// Whether a kind of memory is a device's: "cuda" (from cuMemAlloc) or "cuda-pages" (handles of 2 MiB).
bool OfDevice(const std::string& kind);

/// Memory of the kind that a party is asked for: "mapped" (from Allocate), "any" (anonymous pages), "huge"
/// (anonymous huge pages), or a device's, which "any" memory mirrors.
class BenchMemory {
 public:
  /// Errors: kExhausted; kInvalidArgument for a device that there is not; DeviceBlock::Make's.
  static Result<BenchMemory> Make(const PartySetup& setup, const Settings& settings, size_t bytes);
  /// What transfers read and write.
  [[nodiscard]] Memory memory() const { return block_ == nullptr ? HostMemory(bytes_) : block_->memory(); }
  /// The same in host memory: itself, or the mirror.
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  /// -1: host memory.
  [[nodiscard]] int device() const { return block_ == nullptr ? -1 : block_->memory().device; }

  /// Writes all pieces of a round again, as a step of a trainer would: bytes that depend on the seed.
  Status Fill(const PartyWork& work);
  /// Reads what has come over, once. kCorrupt if it is not what Fill wrote with this seed.
  Status Check(const PartyWork& work);

 private:
  static Result<BenchMemory> OnHost(const std::string& kind, size_t bytes);

  std::shared_ptr<SharedBuffer> shared_;
  std::shared_ptr<DeviceBlock> block_;  ///< Null: host memory.
  std::span<std::byte> bytes_;
};

}  // namespace weightcast::tools
