#pragma once

#include <openssl/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "stream/secret.h"

/// OpenSSL, apart from whatever else in the process uses it.
namespace weightcast::stream {

inline constexpr size_t kKeyBytes = 32;

/// A context of our own: it has read no openssl.cnf, and exists as long as the process. The first call
/// also says that OpenSSL registers nothing at exit, where threads may still use it.
OSSL_LIB_CTX* Library();

/// Bytes as OpenSSL takes them.
inline const unsigned char* Raw(std::string_view bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

/// HKDF-SHA256 (RFC 5869) without salt: 32 bytes for this purpose.
Secret DeriveKey(const Secret& from, std::string_view info);
/// The first bytes of SHA-256, in hexadecimal: a name for something public.
std::string ShortHash(std::string_view bytes);

}  // namespace weightcast::stream
