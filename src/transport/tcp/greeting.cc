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
  out.Put(kGreetingMagic);
  out.Put(kGreetingVersion);
  out.Put(static_cast<uint8_t>(greeting.kind));
  out.Put(uint8_t{0});
  out.Put(greeting.lane);
  out.Put(uint16_t{0});
  out.Put(greeting.generation);
  out.PutRaw({reinterpret_cast<const char*>(greeting.cookie.data()), greeting.cookie.size()});
  GreetingBytes bytes;
  std::memcpy(bytes.data(), out.bytes().data(), bytes.size());
  return bytes;
}

std::optional<Greeting> ParseGreeting(const GreetingBytes& bytes) {
  ByteReader in({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const auto magic = in.Get<uint32_t>();
  const auto version = in.Get<uint16_t>();
  const auto kind = in.Get<uint8_t>();
  uint64_t reserved = in.Get<uint8_t>();
  Greeting greeting;
  greeting.lane = in.Get<uint16_t>();
  reserved |= in.Get<uint16_t>();
  greeting.generation = in.Get<uint32_t>();
  std::memcpy(greeting.cookie.data(), in.rest().data(), greeting.cookie.size());
  if (magic != kGreetingMagic || version != kGreetingVersion || reserved != 0) return std::nullopt;
  if (kind < static_cast<uint8_t>(Greeting::Kind::kHello) ||
      kind > static_cast<uint8_t>(Greeting::Kind::kStart))
    return std::nullopt;
  greeting.kind = static_cast<Greeting::Kind>(kind);
  return greeting;
}

}  // namespace weightcast::transport::tcp
