#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "memory/memory.h"
#include "weightcast/status.h"

// What scripts carry between processes by their own means: bytes that may be anything when they come back.
namespace weightcast::p2p {

/// What a process calls its GPU: a PCI address where there is one, else "cpu".
struct Gpu {
  static constexpr size_t kMaxLabel = 32;
  int32_t index = 0;
  std::string label = "cpu";
  /// Its script goes by numbers, as those for older releases did; otherwise by labels.
  bool by_index = false;
  friend bool operator==(const Gpu&, const Gpu&) = default;
};

/// How to reach an engine. Scripts exchange it in buffers of their own metadata's length, so every engine's
/// has the same.
struct EngineMetadata {
  static constexpr size_t kBytes = 512;
  Incarnation incarnation = 0;
  uint32_t rank = 0;
  Gpu gpu;
  std::vector<std::string> addresses;  ///< "host:port", best first; what does not fit is left out.
  friend bool operator==(const EngineMetadata&, const EngineMetadata&) = default;
};
std::string Encode(const EngineMetadata& metadata);
/// kInvalidArgument: it is no engine's metadata, or was damaged on its way.
Result<EngineMetadata> ParseMetadata(std::string_view bytes);

/// Names bytes of registered memory to other processes.
struct Advert {
  static constexpr size_t kBytes = 64;
  Incarnation owner = 0;
  uint64_t memory = 0;  ///< Number of the registration there.
  uint64_t offset = 0;  ///< Within it.
  uint64_t length = 0;
  uint64_t address = 0;  ///< At the owner; for the eye only.
  friend bool operator==(const Advert&, const Advert&) = default;
};
std::string Encode(const Advert& advert);
/// kInvalidArgument: no advert, or damaged.
Result<Advert> ParseAdvert(std::string_view bytes);

/// Several at once.
inline constexpr size_t kMaxAdverts = 1 << 20;
std::string Encode(const std::vector<Advert>& adverts);
Result<std::vector<Advert>> ParseAdverts(std::string_view bytes);

}  // namespace weightcast::p2p
