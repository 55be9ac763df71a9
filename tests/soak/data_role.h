#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "soak/data_board.h"
#include "weightcast/endpoint.h"
#include "weightcast/memory.h"

namespace weightcast::soak {

/// How one process of a pair begins.
struct DataSetup {
  std::string folder;  ///< Where the target says how to reach it.
  uint32_t pair = 0;
  bool shared = false;  ///< Memory from Allocate, or of the process alone.
  Settings settings;
};

/// Returns the exit code: 0 when the board said stop.
int RunTarget(DataBoard& board, const DataSetup& setup);
int RunSource(DataBoard& board, const DataSetup& setup);

// --- What both need.

inline constexpr size_t kAreaSize = 2 << 20;
/// Of the area that the source reads.
inline constexpr uint64_t kBookSeed = 7;
/// For what the product bounds by leases: far more than it takes.
inline constexpr Duration kFencePatience = std::chrono::seconds(20);

inline void Rest(Duration duration) { std::this_thread::sleep_for(duration); }

class Area {
 public:
  explicit Area(bool shared);
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  /// Bytes that differ for each seed and by place.
  void Fill(uint64_t seed) const;
  [[nodiscard]] bool Is(uint64_t seed) const;

 private:
  std::shared_ptr<SharedBuffer> buffer_;
  std::unique_ptr<std::byte[]> own_;
  std::span<std::byte> bytes_;
};

Result<std::unique_ptr<Endpoint>> MakeEndpoint(const DataSetup& setup, const std::string& role,
                                               std::function<void(Connection)> on_connection);
/// Counts a round and notes what this process holds.
void EndRound(DataBoard::Role& role);

/// A notice as words.
using Words = std::vector<std::string>;
bool Say(Connection& connection, const std::string& words);
/// The next; nothing once the connection has ended or the board says stop.
std::optional<Words> Hear(DataBoard& board, Connection& connection);
std::string Unhex(const std::string& text);

}  // namespace weightcast::soak
