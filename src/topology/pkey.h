#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "drivers/ibverbs/ibverbs.h"
#include "weightcast/status.h"

namespace weightcast::topology {

/// An InfiniBand partition: 15 bits, and above them whether a port is a full member. Two limited members of
/// one partition do not hear each other.
struct FoundPkey {
  uint16_t key = 0;
  uint16_t index = 0;
};
inline constexpr uint16_t kFullMember = 0x8000;

/// "0x8001"
std::string PkeyText(uint16_t key);
/// The entry of a port's P_Key table to use: that of the partition `setting` if it names one, else the first
/// with full membership, else entry 0. On Ethernet {}. kUnavailable: the port is not in that partition.
Result<FoundPkey> ChoosePkey(drivers::Ibverbs& api, ibv_context* context, uint8_t port,
                             const ibv_port_attr& attr, std::string_view setting);

}  // namespace weightcast::topology
