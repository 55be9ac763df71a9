#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace weightcast {

/// Fills from getrandom(2): fit for incarnations, nonces and tokens.
void FillRandom(std::span<std::byte> out);
/// A random number that is never 0.
uint64_t RandomId();

}  // namespace weightcast
