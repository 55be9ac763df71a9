#pragma once

#include <openssl/ssl.h>

#include "unit/stream/fixture.h"

namespace weightcast::stream {

/// The trainer's key, in a session for OpenSSL. Its callback takes no state: one member for all.
inline int UseTrainerKey(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* size,
                         SSL_SESSION** session) {
  static const ClientKeys keys = TrainerKeys();
  constexpr unsigned char kSuite[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256.
  *id = reinterpret_cast<const unsigned char*>(keys.identity.data());
  *size = keys.identity.size();
  *session = SSL_SESSION_new();
  SSL_SESSION_set1_master_key(*session, reinterpret_cast<const unsigned char*>(keys.key.bytes().data()),
                              keys.key.size());
  SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, kSuite));
  SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION);
  return 1;
}

}  // namespace weightcast::stream
