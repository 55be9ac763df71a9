#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weightcast/status.h"

/// As much of TLS (RFC 8446) as it takes to judge a stranger before OpenSSL sees anything of it. Pure
/// functions.
namespace weightcast::stream {

inline constexpr size_t kMostHelloBytes = 1024;

struct ClientHello {
  std::vector<std::string> protocols;  ///< ALPN.
  std::string identity;                ///< Of the one pre-shared key; empty: it offers none.
  bool tls13 = false;
};

/// The ClientHello that the bytes are; nullopt when more has to come. Errors: kProtocol for what no client of
/// weightcast sends.
Result<std::optional<ClientHello>> ReadClientHello(std::string_view bytes);

/// Whether it begins as HTTP/2 does: older releases speak that.
bool IsHttp2Client(std::string_view bytes);
bool IsHttp2Server(std::string_view bytes);

/// Why a connection ends (RFC 8446, section 6.2); those that the two sides of a stream send.
enum class Alert : uint8_t {
  kHandshakeFailure = 40,
  kIllegalParameter = 47,
  kDecodeError = 50,
  kDecryptError = 51,
  kProtocolVersion = 70,
  kUnknownIdentity = 115,
  kNoProtocol = 120,
};
/// The alert as the bytes on the wire before anything is encrypted.
std::string AlertRecord(Alert alert);

}  // namespace weightcast::stream
