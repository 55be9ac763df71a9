#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "drivers/ibverbs/ibverbs.h"
#include "weightcast/status.h"

namespace weightcast::topology {

using Gid = std::array<uint8_t, 16>;

struct FoundGid {
  Gid gid{};
  uint8_t index = 0;
  uint8_t subnet_bits = 0;  ///< How many leading bits of `gid` are the same for all on its subnet.
};

/// "10.0.0.1" for an IPv4-mapped one, else as an IPv6 address.
std::string ToString(const Gid& gid);

/// The entry of a port's GID table to be reached under: `setting` if it is a number, else on Ethernet RoCE v2
/// with an IPv4-mapped address before a global IPv6 one before a link-local one; on InfiniBand the first.
/// kUnavailable: the port has none, with what it has instead.
Result<FoundGid> ChooseGid(drivers::Ibverbs& api, ibv_context* context, uint8_t port,
                           const ibv_port_attr& attr, std::string_view setting);

}  // namespace weightcast::topology
