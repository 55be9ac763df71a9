#include "contract/child.h"

#include "base/bytes.h"

namespace weightcast::transport {

Incarnation ConnectOver(Channel& channel, Side& side, LinkId link, Role role) {
  const auto deadline = Clock::now() + kPatience;
  ByteWriter hello;
  hello.Put(side.self());
  channel.Send(hello.bytes());
  const std::string heard = channel.Receive();
  const auto peer = ByteReader(heard).Get<uint64_t>();
  if (role == Role::kInitiator) {
    auto offer = side.transport().OpenLink(link, role, peer, "", deadline);
    Require(offer.ok(), offer.status().message());
    channel.Send(*offer);
    const Status status = side.transport().Establish(link, channel.Receive());
    Require(status.ok(), status.message());
  } else {
    auto answer = side.transport().OpenLink(link, role, peer, channel.Receive(), deadline);
    Require(answer.ok(), answer.status().message());
    channel.Send(*answer);
  }
  Require(PumpUntil({&side}, [&] { return side.ready.contains(link); }), "the link does not become ready");
  return peer;
}

std::string Pack(const Described& region) {
  ByteWriter out;
  out.Put(region.name.owner);
  out.Put(region.name.id);
  out.Put(region.name.generation);
  out.Put(region.length);
  out.PutString(region.key);
  return out.Take();
}

Described Unpack(std::string_view bytes) {
  ByteReader in(bytes);
  Described region;
  region.name.owner = in.Get<uint64_t>();
  region.name.id = in.Get<uint32_t>();
  region.name.generation = in.Get<uint32_t>();
  region.length = in.Get<uint64_t>();
  region.key = in.GetString(4096);
  Require(in.AtEnd(), "a description is damaged");
  return region;
}

}  // namespace weightcast::transport
