#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "stream/role.h"

namespace weightcast::stream {

/// The name of a key, which the client's first message has in clear: nothing in it is secret.
struct Identity {
  uint32_t version = 0;  ///< Of the protocol.
  Member member;         ///< kObserver names the key of kObserve, the others theirs of kControl.
  std::string job;       ///< JobHash.
  friend bool operator==(const Identity&, const Identity&) = default;
};

/// Tells jobs apart: a hash of the controller's public key.
std::string JobHash(std::string_view controller_public_key);

/// "weightcast/3:inference/a:0123456789abcdef".
std::string IdentityText(const Identity& identity);
std::optional<Identity> ParseIdentity(std::string_view text);

/// What a client and a server of this version name in ALPN: "weightcast/3".
std::string ProtocolName(uint32_t version);
/// nullopt: of something else.
std::optional<uint32_t> ParseProtocolName(std::string_view text);

}  // namespace weightcast::stream
