#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/socket.h"
#include "transport/tcp/greeting.h"
#include "weightcast/status.h"

// What the endpoints carry between two tcp transports: docs/wire.md, "tcp".
namespace weightcast::transport::tcp {

inline constexpr uint32_t kMaxLanes = 64;
inline constexpr uint32_t kMaxDepth = 4096;
inline constexpr size_t kMaxAddresses = 32;
/// A link-local address may be tried on several links. An attempt's number has eight bits in keys.h.
inline constexpr size_t kMaxAttempts = 2 * kMaxAddresses;

struct Offer {
  Cookie cookie{};
  uint16_t lanes = 1;
  uint16_t depth = 1;
  std::string boot_id;
};

struct Answer {
  Cookie cookie{};
  uint16_t lanes = 1;
  uint16_t depth = 1;
  bool spread = false;  ///< Lanes begin with different addresses.
  std::vector<SocketAddress> addresses;
};

std::string EncodeOffer(const Offer& offer);
std::string EncodeAnswer(const Answer& answer);
/// kProtocol says what does not fit. An answer's addresses are as they can be reached from here.
Result<Offer> ParseOffer(std::string_view bytes);
Result<Answer> ParseAnswer(std::string_view bytes);

}  // namespace weightcast::transport::tcp
