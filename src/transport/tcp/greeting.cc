#include "transport/tcp/greeting.h"

#include <cstring>
#include <string_view>

#include "base/bytes.h"

namespace weightcast::transport::tcp {
namespace {
constexpr uint32_t kGreetingMagic = 0x4e4c4357;  // "WCLN" on the wire.
constexpr uint16_t kGreetingVersion = 2;
}  // namespace

GreetingBytes EncodeGreeting(const Greeting& greeting) {
  ByteWriter out;
  out.Put(kGreetingMagic, kGreetingVersion, greeting.kind, uint8_t{0}, greeting.lane, uint16_t{0},
          greeting.generation, greeting.cookie);
  GreetingBytes bytes;
  std::memcpy(bytes.data(), out.bytes().data(), bytes.size());
  return bytes;
}

std::optional<Greeting> ParseGreeting(const GreetingBytes& bytes) {
  ByteReader in({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const auto magic = in.Get<uint32_t>();
  const auto version = in.Get<uint16_t>();
  uint8_t zero8 = 0;
  uint16_t zero16 = 0;
  Greeting greeting;
  in.Get(greeting.kind, zero8, greeting.lane, zero16, greeting.generation, greeting.cookie);
  if (magic != kGreetingMagic || version != kGreetingVersion || zero8 != 0 || zero16 != 0)
    return std::nullopt;
  if (greeting.kind < Greeting::Kind::kHello || greeting.kind > Greeting::Kind::kStart) return std::nullopt;
  return greeting;
}

}  // namespace weightcast::transport::tcp
