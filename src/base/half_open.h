#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace weightcast {

/// Connections whose peers have proven nothing yet, by number. Anyone can open one, so their count is
/// bounded. When the bound is reached, one of those that have said nothing goes, otherwise one at random:
/// whoever opens most loses most, and an honest peer needs only a round trip here.
class HalfOpen {
 public:
  explicit HalfOpen(size_t most = Most()) : most_(most) {}
  /// A quarter of the descriptors that this process may open, 16 to 4,096: thousands of peers may come at
  /// once when a job starts, and strangers never get more than that.
  static size_t Most();

  void Add(uint64_t number);
  /// It has said something that makes sense.
  void Heard(uint64_t number);
  /// It has proven itself, or is closed. Harmless for one that is not here.
  void Remove(uint64_t number);
  [[nodiscard]] bool empty() const { return places_.empty(); }
  [[nodiscard]] bool full() const { return places_.size() >= most_; }
  /// Who goes next. There must be one.
  [[nodiscard]] uint64_t Victim() const;

 private:
  struct Place {
    bool heard = false;
    size_t index = 0;
  };
  void Insert(uint64_t number, bool heard);

  size_t most_;
  std::unordered_map<uint64_t, Place> places_;
  std::array<std::vector<uint64_t>, 2> numbers_;  ///< The silent; those who were heard.
};

}  // namespace weightcast
