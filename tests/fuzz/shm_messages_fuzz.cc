// What a peer of the shm transport sends over the link's Unix socket: what parses is the same once more after
// it was encoded. Of what comes, any number but 0 is true, and an unknown code is an internal error.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "transport/shm/messages.h"
#include "transport/shm/source_messages.h"

using namespace weightcast::transport::shm;

namespace {

template <typename Decode>
void RoundTrip(std::string_view bytes, Decode decode) {
  const auto message = decode(bytes);
  if (!message.ok()) return;
  const std::string encoded = Encode(*message);
  const auto again = decode(encoded);
  if (!again.ok() || Encode(*again) != encoded) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  (void)KindOf(bytes);
  RoundTrip(bytes, DecodeInvitation);
  RoundTrip(bytes, Decode<Hello>);
  RoundTrip(bytes, Decode<Trial>);
  RoundTrip(bytes, Decode<Verdict>);
  RoundTrip(bytes, Decode<WantRegion>);
  RoundTrip(bytes, Decode<RegionReply>);
  RoundTrip(bytes, Decode<RingReply>);
  RoundTrip(bytes, Decode<WantStage>);
  RoundTrip(bytes, Decode<StageReply>);
  RoundTrip(bytes, Decode<WantSource>);
  RoundTrip(bytes, Decode<SourceOffer>);
  RoundTrip(bytes, Decode<SourceHandles>);
  RoundTrip(bytes, Decode<SourceVerdict>);
  RoundTrip(bytes, Decode<Drop>);
  RoundTrip(bytes, Decode<Dropped>);
  return 0;
}
