#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stream/client_hello.h"
#include "stream/identity.h"
#include "stream/token.h"
#include "weightcast/status.h"

namespace weightcast::stream {

/// What a server knows of its job. Immutable: any thread.
class ServerKeys {
 public:
  ServerKeys(MasterToken master, uint32_t version);

  /// Whether a handshake may begin, judged by names alone.
  struct Judgement {
    std::optional<Identity> identity;  ///< Whose key it must have; nullopt: refused.
    Alert alert = Alert::kHandshakeFailure;
    std::string reason = {};  ///< For this side's log.
  };
  [[nodiscard]] Judgement Judge(const ClientHello& hello) const;
  /// The key of an identity that Judge has let pass.
  [[nodiscard]] Secret KeyOf(const Identity& identity) const;

  [[nodiscard]] uint32_t version() const { return version_; }
  [[nodiscard]] const SigningKey& controller() const { return controller_; }

 private:
  const MasterToken master_;
  const uint32_t version_;
  const SigningKey controller_;
  const std::string job_;
};

/// What a client shows and has: the identity of its role, or of an observer. Errors: kPermission where its
/// token has no such key; kInvalidArgument for a purpose that is no stream's.
struct ClientKeys {
  std::string identity;
  Secret key;
  std::string controller;  ///< Public key.
};
Result<ClientKeys> ClientKeysOf(const RoleToken& token, Purpose purpose, uint32_t version);

}  // namespace weightcast::stream
