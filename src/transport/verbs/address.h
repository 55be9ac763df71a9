#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "topology/nic_wish.h"
#include "weightcast/status.h"

namespace weightcast::transport::verbs {

using Gid = std::array<uint8_t, 16>;

/// Where one port of one device can be reached: what its peer needs to connect a queue pair.
struct Address {
  bool infiniband = false;  ///< Else RoCE v2.
  uint8_t mtu = 0;          ///< enum ibv_mtu of what is active.
  uint8_t reads = 0;        ///< Reads of a peer that one queue pair serves at once.
  uint16_t lid = 0;         ///< InfiniBand.
  bool grh = false;         ///< InfiniBand: it is reached only with a global route header.
  uint16_t pkey = 0;        ///< InfiniBand.
  Gid gid{};
  uint8_t subnet_bits = 0;  ///< How many leading bits of `gid` are the same for all on its subnet.
  bool operator==(const Address&) const = default;
};

/// One subnet: packets go there directly.
bool SameSubnet(const Address& x, const Address& y);
/// Why there can be no path between them, for a person; empty: there may be one, on RoCE over routers.
std::string WhyApart(const Address& x, const Address& y);
/// "10.0.0.1", "fe80::1" or "LID 7".
std::string ToString(const Address& address);

/// A queue pair as its peer needs to know it. Both numbers have 24 bits.
struct QueueName {
  uint32_t number = 0;
  uint32_t psn = 0;
};

using topology::kMaxNics;
inline constexpr size_t kMaxLanes = 64;

/// What the initiator has made: for each device a control queue pair and data ones.
struct OfferedNic {
  uint8_t index = 0;  ///< Among the initiator's NICs, as in its region keys.
  Address address;
  QueueName control;
  std::vector<QueueName> data;
};
struct Offer {
  uint64_t cookie = 0;
  std::vector<OfferedNic> nics;
};
/// The responder's choice: for a device of the offer one of its own, or two. Its queue pairs meet those of
/// the offer, the control one first, in their order and each once: of a second rail on the same device, those
/// behind the first one's.
struct AnsweredRail {
  uint8_t offered = 0;  ///< Index in the offer.
  uint8_t nic = 0;      ///< Index of the responder's device, as in its region keys.
  Address address;
  QueueName control;
  std::vector<QueueName> data;
};
struct Answer {
  uint64_t cookie = 0;
  std::vector<AnsweredRail> rails;
};

std::string Encode(const Offer& offer);
std::string Encode(const Answer& answer);
/// kProtocol for everything that Encode does not write.
Result<Offer> ParseOffer(std::string_view bytes);
Result<Answer> ParseAnswer(std::string_view bytes);

/// How a region is cut that is larger than a device registers at once. All parts but the last have one
/// length.
struct Parts {
  static constexpr uint32_t kMost = 30;  ///< Keys of 16 devices are below 2 KiB together.
  uint64_t length = 0;                   ///< Of one, in bytes; above 0.
  uint32_t count = 1;
  /// Where a table by NIC and part has the part with this byte.
  [[nodiscard]] size_t IndexOf(size_t nic, uint64_t offset) const {
    return count == 1 ? nic : nic * count + std::min<uint64_t>(offset / length, count - 1);
  }
  /// Bytes from there to the end of its part.
  [[nodiscard]] uint64_t Left(uint64_t offset) const {
    return count == 1 ? UINT64_MAX : length - offset % length;
  }
};
/// Parts of a region of `length` bytes; nullopt: there would be too many.
std::optional<Parts> CutInto(uint64_t part, uint64_t length);

/// What a peer needs to reach a region: its place and its keys in each of the owner's devices.
struct RegionKey {
  uint32_t id = 0;
  uint32_t generation = 0;
  uint8_t access = 0;
  uint64_t base = 0;
  uint64_t length = 0;
  uint64_t part = 0;            ///< Bytes of what one key is for; the last one of a device may be shorter.
  std::vector<uint32_t> rkeys;  ///< By device, then by part.
};
std::string Encode(const RegionKey& key);
Result<RegionKey> ParseRegionKey(std::string_view bytes);

}  // namespace weightcast::transport::verbs
