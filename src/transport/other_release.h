#pragma once

#include <cstdint>
#include <string_view>

#include "base/advice.h"
#include "base/strings.h"
#include "weightcast/status.h"

// Errors about what a peer of another release may send.
namespace weightcast::transport {

/// `what`: is wrong with it.
inline Status OtherRelease(std::string_view what) { return Error(Code::kProtocol, what, kSameRelease); }

/// Of the blobs that two transports of one kind exchange.
inline Status CheckVersion(std::string_view transport, uint8_t theirs, uint8_t ours) {
  if (theirs == ours) return Status::Ok();
  return Error(Code::kProtocol, "the peer's ", transport, " transport speaks version ",
               static_cast<int>(theirs), ", this one ", static_cast<int>(ours),
               "; run the same release on both");
}

}  // namespace weightcast::transport
