#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace weightcast {

/// XXH64 with seed 0: the checksum of tables, files and transfers (not a defence against forgers).
uint64_t Hash64(std::span<const std::byte> bytes);
uint64_t Hash64(std::string_view bytes);

/// The same over bytes that come in several parts.
class Hasher64 {
 public:
  Hasher64();
  void Add(std::span<const std::byte> bytes);
  [[nodiscard]] uint64_t Finish() const;

 private:
  alignas(8) std::array<std::byte, 88> state_;  ///< xxHash's own, whose header stays out of this one.
};

/// HMAC-SHA256: proves possession of a key. Throws std::bad_alloc.
using Digest = std::array<std::byte, 32>;
Digest HmacSha256(std::string_view key, std::string_view message);
/// Compares in constant time.
bool SameDigest(const Digest& a, const Digest& b);

}  // namespace weightcast
