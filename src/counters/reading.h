#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weightcast/clock.h"

namespace weightcast::counters {

/// What may be counted, in the order of kNames.
enum class Quantity : uint8_t {
  kSentBytes,
  kReceivedBytes,
  kSentPackets,
  kReceivedPackets,
  kRetransmissions,  ///< By RDMA devices: the events after which packets are sent again.
  kCnpsSent,         ///< Congestion notifications (RoCE): packets came marked by ECN.
  kCnpsReceived,     ///< A peer asks this one to send more slowly.
  kPausesSent,       ///< Pause frames, of PFC or of the whole link.
  kPausesReceived,
  kDrops,
};
inline constexpr std::array<std::string_view, 10> kNames = {
    "sent_bytes", "received_bytes", "sent_packets", "received_packets", "retransmissions",
    "cnps_sent",  "cnps_received",  "pauses_sent",  "pauses_received",  "drops"};
inline constexpr size_t kQuantities = kNames.size();

/// One value of a counter as the kernel has it; `unit` of them make one of the quantity.
struct Count {
  uint64_t value = 0;
  uint64_t unit = 1;
};

enum class DeviceKind : uint8_t { kInterface, kRdma, kTcp, kNvlink };
/// "interface", "rdma", "tcp", "nvlink".
std::string_view NameOf(DeviceKind kind);

template <typename T>
class PerQuantity {
 public:
  std::optional<T>& operator[](Quantity quantity) { return all_[static_cast<size_t>(quantity)]; }
  const std::optional<T>& operator[](Quantity quantity) const { return all_[static_cast<size_t>(quantity)]; }
  /// By the place in kNames.
  [[nodiscard]] const std::optional<T>& at(size_t place) const { return all_[place]; }
  [[nodiscard]] std::optional<T>& at(size_t place) { return all_[place]; }

 private:
  std::array<std::optional<T>, kQuantities> all_{};
};

/// What one device counts; nullopt: it does not count this.
struct Device {
  std::string name;  ///< "eth0", "mlx5_0:1", "tcp", "gpu0".
  DeviceKind kind = DeviceKind::kInterface;
  PerQuantity<Count> counts;
};

/// All counters at one time.
struct Reading {
  TimePoint at;
  std::vector<Device> devices;
};

}  // namespace weightcast::counters
