#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace weightcast::model {

/// Open addressing from a 64-bit fingerprint to a number. What has the same fingerprint is taken for the
/// same: with 10^8 keys the odds of one mistake are below 1 in 1,000.
class FingerprintTable {
 public:
  static constexpr uint32_t kAbsent = ~uint32_t{0};
  FingerprintTable() { Grow(1024); }

  [[nodiscard]] uint32_t Find(uint64_t key) const {
    for (size_t at = key & mask_;; at = (at + 1) & mask_) {
      if (values_[at] == kAbsent) return kAbsent;
      if (keys_[at] == key) return values_[at];
    }
  }
  /// The key must be absent.
  void Insert(uint64_t key, uint32_t value) {
    if (++size_ * 3 > (mask_ + 1) * 2) Grow((mask_ + 1) * 2);
    Place(key, value);
  }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] size_t bytes() const { return keys_.size() * 12; }
  void Clear() {
    size_ = 0;
    keys_.clear();
    values_.clear();
    Grow(1024);
  }

 private:
  void Place(uint64_t key, uint32_t value) {
    size_t at = key & mask_;
    while (values_[at] != kAbsent) at = (at + 1) & mask_;
    keys_[at] = key;
    values_[at] = value;
  }
  void Grow(size_t slots) {
    const auto keys = std::exchange(keys_, std::vector<uint64_t>(slots));
    const auto values = std::exchange(values_, std::vector<uint32_t>(slots, kAbsent));
    mask_ = slots - 1;
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i] != kAbsent) Place(keys[i], values[i]);
  }

  std::vector<uint64_t> keys_;
  std::vector<uint32_t> values_;
  size_t mask_ = 0;
  size_t size_ = 0;
};

/// Spreads the bits of a small key.
inline uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Keeps one copy of each different value, under a number. Number 0 is the first that was added.
template <typename T>
class Pool {
 public:
  uint32_t Add(T value, uint64_t fingerprint) {
    const uint32_t known = table_.Find(fingerprint);
    if (known != FingerprintTable::kAbsent) return known;
    const auto id = static_cast<uint32_t>(values_.size());
    table_.Insert(fingerprint, id);
    values_.push_back(std::move(value));
    return id;
  }
  [[nodiscard]] const T& operator[](uint32_t id) const { return values_[id]; }
  [[nodiscard]] size_t size() const { return values_.size(); }

 private:
  FingerprintTable table_;
  std::deque<T> values_;
};

}  // namespace weightcast::model
