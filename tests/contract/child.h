#pragma once

#include <string>

#include "child_process.h"
#include "contract/side.h"

namespace weightcast::transport {

using test::Channel;
using test::Child;

/// Opens the link over the channel; returns when it is ready here. Both ends call it, in opposite roles.
/// Returns the peer's incarnation.
Incarnation ConnectOver(Channel& channel, Side& side, LinkId link, Role role);

std::string Pack(const Described& region);
Described Unpack(std::string_view bytes);

}  // namespace weightcast::transport
