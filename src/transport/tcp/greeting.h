#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/random.h"

// What crosses a lane before it starts, and what the endpoints carry: docs/wire.md, "tcp".
namespace weightcast::transport::tcp {

/// Random, for one side of one link: who shows it has been told of the link.
using Cookie = std::array<std::byte, 16>;
inline Cookie NewCookie() {
  Cookie cookie;
  FillRandom(cookie);
  return cookie;
}

struct Greeting {
  enum class Kind : uint8_t { kHello = 1, kWelcome, kStart };
  Kind kind = Kind::kHello;
  uint16_t lane = 0;
  uint32_t generation = 0;  ///< How often the lane has been opened again.
  Cookie cookie{};
};

inline constexpr size_t kGreetingSize = 32;
using GreetingBytes = std::array<std::byte, kGreetingSize>;

GreetingBytes EncodeGreeting(const Greeting& greeting);
/// nullopt for anything else, from whoever connected.
std::optional<Greeting> ParseGreeting(const GreetingBytes& bytes);

}  // namespace weightcast::transport::tcp
