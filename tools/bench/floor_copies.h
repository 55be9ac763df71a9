#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace weightcast::tools {

/// memcpy in pieces of 1 MiB: the C library's own choice for longer ones would be non-temporal stores.
void CopyThroughCaches(std::span<std::byte> to, std::span<const std::byte> from);
/// Non-temporal stores where the machine has them.
void CopyPastCaches(std::span<std::byte> to, std::span<const std::byte> from);
/// Writes every byte, other ones for another `round`.
void Refresh(std::span<std::byte> bytes, uint64_t round);
/// Reads every byte.
uint64_t Sum(std::span<const std::byte> bytes);

}  // namespace weightcast::tools
