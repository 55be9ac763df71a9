#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "counters/reading.h"

namespace weightcast::counters {

/// How far a counter went. One of 32 or of 64 bits may have wrapped; nullopt: it began again, so nobody
/// knows.
std::optional<uint64_t> Between(const Count& before, const Count& after);

/// What one device counted between two readings.
struct Change {
  std::string device;
  DeviceKind kind = DeviceKind::kInterface;
  PerQuantity<uint64_t> counts;  ///< In units of the quantity.
};
/// Of devices that both readings have.
std::vector<Change> Changes(const Reading& before, const Reading& after);
/// Names of the devices that only the first has.
std::vector<std::string> Gone(const Reading& before, const Reading& after);
/// Names of those where some counter began again.
std::vector<std::string> BeganAgain(const Reading& before, const Reading& after);

}  // namespace weightcast::counters
