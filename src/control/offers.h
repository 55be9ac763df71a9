#pragma once

#include <cstdint>
#include <vector>

#include "control/members.h"

namespace weightcast::control {

/// How many trainers offer which number, and how many of them wait for an answer. A trainer that offers
/// nothing counts with the number -1.
class Offers {
 public:
  /// Trainers that wait for an answer to what they have published.
  [[nodiscard]] uint32_t waiting() const { return waiting_; }
  /// Trainers that offer this number.
  [[nodiscard]] uint32_t Of(int64_t number) const;
  /// What all trainers that are here offer; -1: nothing, or not the same.
  [[nodiscard]] int64_t Common() const { return entries_.size() == 1 ? entries_.front().number : -1; }
  /// Some trainer waits for an answer to a number below one that another offers.
  [[nodiscard]] bool AnyPassed() const { return waiting_ != 0 && waiting_ != entries_.back().waiting; }

  void Add(const Worker& trainer);
  void Remove(const Worker& trainer);  ///< Its offer is as it was added.

  friend bool operator==(const Offers&, const Offers&) = default;

 private:
  struct Entry {
    int64_t number = -1;
    uint32_t trainers = 0;
    uint32_t waiting = 0;
    friend bool operator==(const Entry&, const Entry&) = default;
  };

  std::vector<Entry> entries_;  ///< By number, with at least one trainer each.
  uint32_t waiting_ = 0;
};

}  // namespace weightcast::control
