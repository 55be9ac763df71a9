// What scripts carry between processes (metadata, adverts) and what engines say to each other: whatever
// parses encodes to itself. Checksums are fixed first, or nothing would get past them.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/hash.h"
#include "p2p/messages.h"
#include "p2p/metadata.h"

using namespace weightcast;

namespace {

std::string WithChecksum(std::string_view bytes) {
  constexpr size_t kChecksum = sizeof(uint64_t);
  if (bytes.size() < kChecksum) return std::string(bytes);
  const std::string_view body = bytes.substr(0, bytes.size() - kChecksum);
  ByteWriter writer;
  writer.PutRaw(body);
  writer.Put(Hash64(body));
  return writer.Take();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string sealed = WithChecksum(bytes);
  if (const auto metadata = p2p::ParseMetadata(sealed); metadata.ok()) {
    const auto again = p2p::ParseMetadata(Encode(*metadata));
    if (!again.ok() || !(*again == *metadata)) std::abort();
  }
  if (const auto advert = p2p::ParseAdvert(sealed); advert.ok()) {
    const auto again = p2p::ParseAdvert(Encode(*advert));
    if (!again.ok() || !(*again == *advert)) std::abort();
  }
  if (const auto adverts = p2p::ParseAdverts(bytes); adverts.ok() && Encode(*adverts) != bytes) std::abort();
  if (const auto message = p2p::Decode(bytes); message.ok()) {
    const auto again = p2p::Decode(Encode(*message));
    if (!again.ok() || !(*again == *message)) std::abort();
  }
  return 0;
}
