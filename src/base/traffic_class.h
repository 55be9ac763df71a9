#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "weightcast/status.h"

namespace weightcast {

/// What ParseTrafficClass takes, for messages.
inline constexpr std::string_view kTrafficClasses =
    "0 to 255 (the DSCP times four), or a DSCP name: cs0 to cs7, af11 to af13, af21 to af23, af31 to af33, "
    "af41 to af43, ef, le; or nothing";

/// The byte that IPv4 calls type of service and IPv6 traffic class: the DSCP in its upper six bits, ECN in
/// the lower two. Text as the setting traffic_class has it: the byte as a number, or a name from RFC 2474
/// (cs0 to cs7), RFC 2597 (af11 to af43), RFC 3246 (ef) or RFC 8622 (le), in any case. Empty: nullopt.
Result<std::optional<uint8_t>> ParseTrafficClass(std::string_view text);

}  // namespace weightcast
