// What a peer of the shm transport sends over the link's Unix socket: what parses encodes to itself.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "transport/shm/messages.h"

using namespace weightcast::transport::shm;

namespace {

template <typename Decode>
void RoundTrip(std::string_view bytes, Decode decode) {
  if (const auto message = decode(bytes); message.ok() && Encode(*message) != bytes) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  (void)KindOf(bytes);
  RoundTrip(bytes, DecodeInvitation);
  RoundTrip(bytes, DecodeHello);
  RoundTrip(bytes, DecodeTrial);
  RoundTrip(bytes, DecodeVerdict);
  RoundTrip(bytes, DecodeWantRegion);
  RoundTrip(bytes, DecodeRegionReply);
  RoundTrip(bytes, DecodeRingReply);
  return 0;
}
