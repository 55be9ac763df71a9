#pragma once

#include <string>
#include <string_view>

#include "protocol/messages.h"
#include "weightcast/status.h"

/// The two messages by which workers and controllers of different versions understand that they differ:
/// Hello, and Refused, which answers it. Their outer form is the same in all versions; its field heads are
/// those that the first versions chose.
namespace weightcast::protocol {

std::string EncodeGreeting(const Hello& hello);
std::string EncodeGreeting(const Refused& refused);

/// Of another version `protocol` alone.
Result<Hello> DecodeHello(std::string_view bytes);
Result<Refused> DecodeRefused(std::string_view bytes);

}  // namespace weightcast::protocol
