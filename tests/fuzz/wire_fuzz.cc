// Whatever the network brings, the decoders of the control plane either refuse it or give a message that
// encodes and decodes to itself.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "wire/codec.h"

namespace {

using weightcast::wire::Encode;

template <typename Decode>
void RoundTrip(std::string_view bytes, Decode decode) {
  const auto message = decode(bytes);
  if (!message.ok()) return;
  const auto again = decode(Encode(*message));
  if (!again.ok() || !(*again == *message)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      RoundTrip(bytes, weightcast::wire::DecodeWorkerMessage);
      break;
    case 1:
      RoundTrip(bytes, weightcast::wire::DecodeControllerMessage);
      break;
    default:
      RoundTrip(bytes, weightcast::wire::DecodeClusterView);
  }
  return 0;
}
