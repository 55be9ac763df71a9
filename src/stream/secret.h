#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace weightcast::stream {

/// Bytes that are zeroed when freed. Nothing prints them but who asks for `bytes`.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string_view bytes);
  Secret(const Secret& other) : Secret(other.bytes()) {}
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret other) noexcept;
  ~Secret();

  [[nodiscard]] std::string_view bytes() const { return {bytes_.get(), size_}; }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  /// In constant time where the sizes are equal.
  friend bool operator==(const Secret& a, const Secret& b);

 private:
  std::unique_ptr<char[]> bytes_;
  size_t size_ = 0;
};

/// Zeroes what a string holds.
void Cleanse(std::string& text);

/// Zeroes a string of somebody's when this ends.
class CleansedAtEnd {
 public:
  explicit CleansedAtEnd(std::string& text) : text_(text) {}
  ~CleansedAtEnd() { Cleanse(text_); }
  CleansedAtEnd(const CleansedAtEnd&) = delete;
  CleansedAtEnd& operator=(const CleansedAtEnd&) = delete;

 private:
  std::string& text_;
};

}  // namespace weightcast::stream
