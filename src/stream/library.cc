#include "stream/library.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <array>
#include <cstdlib>
#include <memory>

#include "base/strings.h"

namespace weightcast::stream {
namespace {

constexpr size_t kShortHashBytes = 8;

/// The algorithms used here are always in OpenSSL: going on without one would let anyone in.
void Need(bool there) {
  if (!there) std::abort();
}

EVP_KDF* Hkdf() {
  static EVP_KDF* const hkdf = EVP_KDF_fetch(Library(), "HKDF", nullptr);
  Need(hkdf != nullptr);
  return hkdf;
}

}  // namespace

OSSL_LIB_CTX* Library() {
  static OSSL_LIB_CTX* const library = [] {
    Need(OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CONFIG, nullptr) == 1);
    OSSL_LIB_CTX* const made = OSSL_LIB_CTX_new();
    Need(made != nullptr);
    return made;
  }();
  return library;
}

Secret DeriveKey(const Secret& from, std::string_view info) {
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(EVP_KDF_CTX_new(Hkdf()),
                                                                          &EVP_KDF_CTX_free);
  Need(context != nullptr);
  char digest[] = "SHA256";
  const std::array<OSSL_PARAM, 4> parameters = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<char*>(from.bytes().data()),
                                        from.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, const_cast<char*>(info.data()), info.size()),
      OSSL_PARAM_construct_end()};
  std::string key(kKeyBytes, '\0');
  const CleansedAtEnd cleansed(key);
  Need(EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(key.data()), key.size(),
                      parameters.data()) == 1);
  return Secret(key);
}

std::string ShortHash(std::string_view bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  size_t size = 0;
  Need(EVP_Q_digest(Library(), "SHA256", nullptr, bytes.data(), bytes.size(), digest.data(), &size) == 1);
  return ToHex({reinterpret_cast<const char*>(digest.data()), kShortHashBytes});
}

}  // namespace weightcast::stream
