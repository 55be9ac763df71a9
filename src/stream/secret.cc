#include "stream/secret.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <utility>

namespace weightcast::stream {

Secret::Secret(std::string_view bytes)
    : bytes_(bytes.empty() ? nullptr : std::make_unique<char[]>(bytes.size())), size_(bytes.size()) {
  std::copy(bytes.begin(), bytes.end(), bytes_.get());
}

Secret::Secret(Secret&& other) noexcept
    : bytes_(std::move(other.bytes_)), size_(std::exchange(other.size_, 0)) {}

Secret& Secret::operator=(Secret other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  return *this;
}

Secret::~Secret() {
  if (bytes_ != nullptr) OPENSSL_cleanse(bytes_.get(), size_);
}

bool operator==(const Secret& a, const Secret& b) {
  return a.size_ == b.size_ && CRYPTO_memcmp(a.bytes().data(), b.bytes().data(), a.size_) == 0;
}

void Cleanse(std::string& text) {
  OPENSSL_cleanse(text.data(), text.size());
  text.clear();
}

}  // namespace weightcast::stream
