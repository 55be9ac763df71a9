#include "base/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <xxhash.h>

#include <new>

namespace weightcast {

uint64_t Hash64(std::span<const std::byte> bytes) { return XXH64(bytes.data(), bytes.size(), 0); }
uint64_t Hash64(std::string_view bytes) { return XXH64(bytes.data(), bytes.size(), 0); }

static_assert(sizeof(XXH64_state_t) <= 88 && alignof(XXH64_state_t) <= 8);

Hasher64::Hasher64() { XXH64_reset(reinterpret_cast<XXH64_state_t*>(state_.data()), 0); }

void Hasher64::Add(std::span<const std::byte> bytes) {
  XXH64_update(reinterpret_cast<XXH64_state_t*>(state_.data()), bytes.data(), bytes.size());
}

uint64_t Hasher64::Finish() const {
  return XXH64_digest(reinterpret_cast<const XXH64_state_t*>(state_.data()));
}

Digest HmacSha256(std::string_view key, std::string_view message) {
  Digest digest;
  unsigned int length = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(digest.data()), &length) == nullptr ||
      length != digest.size()) {
    throw std::bad_alloc();  // SHA-256 is always there; going on without it would let anyone in.
  }
  return digest;
}

bool SameDigest(const Digest& a, const Digest& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace weightcast
