#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace weightcast {

/// Appends numbers in as many bytes as they need (LEB128: seven bits a byte, low ones first).
class VarintWriter {
 public:
  void Put(uint64_t value) {
    constexpr size_t kLongest = 10;
    if (out_.size() - used_ < kLongest) out_.resize(out_.size() * 2 + 1024);
    if (value < 1 << 28) {
      PutShort(static_cast<uint32_t>(value));
      return;
    }
    while (value >= 0x80) {
      out_[used_++] = static_cast<char>(value | 0x80);
      value >>= 7;
    }
    out_[used_++] = static_cast<char>(value);
  }
  void PutRaw(std::string_view bytes) {
    if (out_.size() - used_ < bytes.size()) out_.resize(out_.size() * 2 + bytes.size());
    bytes.copy(out_.data() + used_, bytes.size());
    used_ += bytes.size();
  }
  void PutText(std::string_view text) {
    Put(text.size());
    PutRaw(text);
  }
  [[nodiscard]] size_t size() const { return used_; }
  [[nodiscard]] std::string_view bytes() const { return {out_.data(), used_}; }
  std::string Take() {
    out_.resize(used_);
    return std::move(out_);
  }

 private:
  /// Up to four bytes without a branch on their number, which hardly any predictor could guess.
  void PutShort(uint32_t value) {
    const int bytes = (std::bit_width(value | 1) + 6) / 7;
    const uint32_t groups =
        (value & 0x7f) | (value & 0x3f80) << 1 | (value & 0x1fc000) << 2 | (value & 0xfe00000) << 3;
    const uint32_t more = 0x808080 & ((1U << 8 * (bytes - 1)) - 1);
    const uint32_t word = groups | more;
    std::memcpy(out_.data() + used_, &word, sizeof(word));  // Little-endian, as all of weightcast's hosts.
    used_ += static_cast<size_t>(bytes);
  }

  std::string out_;  ///< Grown ahead of use: a check per number instead of one per byte.
  size_t used_ = 0;
};

/// Reads them from bytes that may be hostile: after the first fault every read gives 0 or nothing
/// and ok() is false. A number in more bytes than it needs is a fault: each has one form.
class VarintReader {
 public:
  explicit VarintReader(std::string_view bytes) : rest_(bytes) {}

  /// A number of at most `limit`.
  uint64_t Get(uint64_t limit) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fU} << shift;
      if (byte >= 0x80) continue;
      const bool overlong = byte == 0 && shift > 0;
      const bool beyond = shift == 63 && byte > 1;
      return value <= limit && !overlong && !beyond ? value : Fail();
    }
    return Fail();
  }
  /// How many items follow: at most `limit`, and each needs at least a byte.
  uint64_t GetCount(uint64_t limit) {
    const uint64_t count = Get(limit);
    return count <= rest_.size() ? count : Fail();
  }
  std::string_view GetRaw(uint64_t size) {
    if (size > rest_.size()) Fail();
    const std::string_view raw = rest_.substr(0, size);
    rest_.remove_prefix(raw.size());
    return raw;
  }
  std::string_view GetText(uint64_t limit) { return GetRaw(GetCount(limit)); }
  [[nodiscard]] size_t left() const { return rest_.size(); }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool AtEnd() const { return ok_ && rest_.empty(); }

 private:
  uint64_t Fail() {
    ok_ = false;
    rest_ = {};
    return 0;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace weightcast
