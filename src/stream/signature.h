#pragma once

#include <openssl/types.h>

#include <memory>
#include <string>
#include <string_view>

#include "stream/secret.h"

/// Ed25519 (RFC 8032).
namespace weightcast::stream {

inline constexpr size_t kPublicKeyBytes = 32;
inline constexpr size_t kSignatureBytes = 64;

class SigningKey {
 public:
  /// `seed`: 32 bytes.
  explicit SigningKey(const Secret& seed);
  [[nodiscard]] const std::string& public_key() const { return public_key_; }
  [[nodiscard]] std::string Sign(std::string_view message) const;

 private:
  std::shared_ptr<EVP_PKEY> key_;
  std::string public_key_;
};

bool HasSigned(std::string_view public_key, std::string_view message, std::string_view signature);

}  // namespace weightcast::stream
