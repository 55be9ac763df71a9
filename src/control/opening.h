#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weightcast/status.h"

/// As much of HTTP/2 (RFC 9113) and HPACK (RFC 7541) as it takes to see a connection's first request before
/// gRPC sees anything of the connection. Pure functions.
namespace weightcast::control {

/// What a client sends first.
inline constexpr std::string_view kClientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// An empty SETTINGS frame. A gRPC client sends no request before it has seen one.
std::string EmptySettings();

struct FirstRequest {
  uint32_t stream = 0;
  std::string path;           ///< Empty where it is not spelt out.
  std::string authorization;  ///< Likewise: no Huffman code, no reference to an earlier header.
};

/// The first request in what a client has sent so far; nullopt when more has to come.
/// Errors: kProtocol for what no gRPC client sends.
Result<std::optional<FirstRequest>> ReadFirstRequest(std::string_view bytes);

/// Answers that request with a gRPC status and no message, and ends the connection.
std::string RefusalOf(uint32_t stream, int grpc_status, std::string_view message);

}  // namespace weightcast::control
