#pragma once

#include "transport/transport.h"

namespace weightcast::transport {

inline constexpr LinkId kLink{3};
inline constexpr GrantName kGrant{.slot = 2, .id = 222};

}  // namespace weightcast::transport
