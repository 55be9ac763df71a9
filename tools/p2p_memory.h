#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tools/p2p_messages.h"
#include "weightcast/memory.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// Memory of the kind that a case asks for: "mapped" (from Allocate), "any" (anonymous pages) or
/// "huge" (anonymous huge pages).
class BenchMemory {
 public:
  static Result<BenchMemory> Make(const std::string& kind, size_t bytes);
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::shared_ptr<SharedBuffer> shared_;
  std::span<std::byte> bytes_;
};

/// Writes all pieces of a round anew, as a step of a trainer would: bytes that depend on the seed.
void FillRound(std::span<std::byte> memory, const PartyWork& work);
/// Reads what has come over, once. kCorrupt if it is not what FillRound wrote with this seed.
Status CheckRound(std::span<const std::byte> memory, const PartyWork& work);

}  // namespace weightcast::tools
