#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

/// What the two processes of a soaked pair tell the program that torments them, in memory that they share.
namespace weightcast::soak {

inline constexpr size_t kTarget = 0;
inline constexpr size_t kSource = 1;

/// What a process holds of what the machine has.
struct Resources {
  std::atomic<uint64_t> descriptors{0};
  std::atomic<uint64_t> threads{0};
  std::atomic<uint64_t> segments{0};  ///< Mappings of memory that is shared.
  std::atomic<uint64_t> resident{0};  ///< Bytes.
};

struct DataBoard {
  struct Role {
    std::atomic<uint64_t> rounds{0};       ///< Over all runs.
    std::atomic<uint64_t> connections{0};  ///< The same.
    std::atomic<uint64_t> life_rounds{0};  ///< Of this run: `first` is of its fifth.
    Resources first;
    Resources last;
  };
  std::array<Role, 2> role;
  // The source's transfers by outcome.
  std::atomic<uint64_t> writes{0};
  std::atomic<uint64_t> reads{0};
  std::atomic<uint64_t> cancelled{0};
  std::atomic<uint64_t> timed_out{0};
  std::atomic<uint64_t> failed{0};

  std::atomic<bool> stop{false};
  std::atomic<uint32_t> violations{0};
  std::array<char, 512> violation{};  ///< The first.

  void Violated(const std::string& what) {
    if (violations.fetch_add(1) == 0) what.copy(violation.data(), violation.size() - 1);
  }
};

}  // namespace weightcast::soak
