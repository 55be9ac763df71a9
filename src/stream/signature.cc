#include "stream/signature.h"

#include <openssl/evp.h>

#include <cstdlib>

#include "stream/library.h"

namespace weightcast::stream {
namespace {

constexpr const char* kAlgorithm = "ED25519";
using DigestContext = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

DigestContext NewContext() { return {EVP_MD_CTX_new(), &EVP_MD_CTX_free}; }

}  // namespace

SigningKey::SigningKey(const Secret& seed)
    : key_(EVP_PKEY_new_raw_private_key_ex(Library(), kAlgorithm, nullptr, Raw(seed.bytes()), seed.size()),
           &EVP_PKEY_free),
      public_key_(kPublicKeyBytes, '\0') {
  size_t size = public_key_.size();
  if (key_ == nullptr || EVP_PKEY_get_raw_public_key(
                             key_.get(), reinterpret_cast<unsigned char*>(public_key_.data()), &size) != 1)
    std::abort();  // The seed has a wrong size, or OpenSSL no Ed25519.
}

std::string SigningKey::Sign(std::string_view message) const {
  const DigestContext context = NewContext();
  std::string signature(kSignatureBytes, '\0');
  size_t size = signature.size();
  if (context == nullptr ||
      EVP_DigestSignInit_ex(context.get(), nullptr, nullptr, Library(), nullptr, key_.get(), nullptr) != 1 ||
      EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size, Raw(message),
                     message.size()) != 1)
    return {};  // Out of memory: nobody takes it for a signature.
  return signature;
}

bool HasSigned(std::string_view public_key, std::string_view message, std::string_view signature) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      EVP_PKEY_new_raw_public_key_ex(Library(), kAlgorithm, nullptr, Raw(public_key), public_key.size()),
      &EVP_PKEY_free);
  const DigestContext context = NewContext();
  return key != nullptr && context != nullptr &&
         EVP_DigestVerifyInit_ex(context.get(), nullptr, nullptr, Library(), nullptr, key.get(), nullptr) ==
             1 &&
         EVP_DigestVerify(context.get(), Raw(signature), signature.size(), Raw(message), message.size()) == 1;
}

}  // namespace weightcast::stream
