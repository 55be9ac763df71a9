#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/fd.h"
#include "base/socket.h"
#include "weightcast/status.h"

/// UDP packets that are answered, for the path MTU and for traffic classes. Each carries the test's key, so
/// that nobody else is answered, and is never cut into fragments.
namespace weightcast::peertest {

inline constexpr size_t kEchoKeyBytes = 16;
inline constexpr size_t kEchoHeader = 8 + kEchoKeyBytes;
inline constexpr size_t kMostEcho = 65'507;  ///< Bytes of UDP.

struct EchoHeader {
  std::array<char, kEchoKeyBytes> key{};
  uint32_t number = 0;
  uint32_t reply_bytes = 0;  ///< Of UDP, that the answer is to have.
};
void WriteEcho(const EchoHeader& header, std::span<char> packet);
/// nullopt: too short, or another key.
std::optional<EchoHeader> ReadEcho(std::span<const char> packet, const std::array<char, kEchoKeyBytes>& key);
/// From hexadecimal. Errors: kProtocol.
Result<std::array<char, kEchoKeyBytes>> ParseEchoKey(std::string_view hex);

/// Bytes of IP and UDP headers before the payload.
size_t EchoOverhead(int family);

/// A bound datagram socket whose packets are not fragmented, and which tells the traffic class of what comes.
Result<UniqueFd> OpenEcho(const SocketAddress& at, PortRange ports);

struct Received {
  std::span<char> bytes;
  SocketAddress from;
  uint8_t traffic_class = 0;
};
/// nullopt: nothing is there, or (`error`) what an ICMP message said.
std::optional<Received> ReceiveEcho(int fd, std::span<char> buffer, int* error = nullptr);
/// 0, or errno. `to`: null where the socket is connected.
int SendEcho(int fd, std::span<const char> bytes, uint8_t traffic_class, const SocketAddress* to);

}  // namespace weightcast::peertest
