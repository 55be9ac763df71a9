// Region descriptors and the keys inside them: what parses encodes to itself and lies inside itself.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "endpoint/transfers/descriptor.h"
#include "transport/shm/regions.h"

using namespace weightcast;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto region = endpoint::ParseDescriptor(bytes); region.ok()) {
    if (endpoint::EncodeDescriptor(*region) != bytes) std::abort();
    if (region->length > region->registered || region->offset > region->registered - region->length)
      std::abort();
  }
  if (const auto key = transport::shm::DecodeKey(bytes); key.ok() && transport::shm::EncodeKey(*key) != bytes)
    std::abort();
  return 0;
}
