#include "transport/verbs/messages.h"

#include <infiniband/verbs.h>

#include <tuple>
#include <utility>

#include "base/bytes.h"

namespace weightcast::transport::verbs {
namespace {

/// First byte of each message. Control messages follow in the order of their variant.
constexpr uint8_t kProbe = 1;
constexpr uint8_t kRecord = 2;
constexpr uint8_t kControl = 16;

// The fields of each message, in the order in which they cross.
auto Fields(Probe& m) { return std::tie(m.cookie, m.queue, m.generation); }
auto Fields(Record& m) { return std::tie(m.lease, m.transfer, m.chunk, m.chunks, m.checksum); }
auto Fields(Start&) { return std::tie(); }
auto Fields(Started&) { return std::tie(); }
auto Fields(GrantOpened& m) { return std::tie(m.grant.slot, m.grant.id, m.lease); }
auto Fields(AskGrant& m) { return std::tie(m.grant.slot, m.grant.id); }
auto Fields(GrantClosed& m) { return std::tie(m.grant.slot, m.grant.id); }
auto Fields(RevokeGrant& m) { return std::tie(m.grant.slot, m.grant.id, m.fence); }
auto Fields(RegionOver& m) { return std::tie(m.id, m.generation, m.fence); }
auto Fields(Fenced& m) { return std::tie(m.fence); }
auto Fields(QueueOver& m) { return std::tie(m.queue, m.generation); }
auto Fields(QueueOffer& m) { return std::tie(m.queue, m.generation, m.number, m.psn); }
auto Fields(QueueAnswer& m) { return std::tie(m.queue, m.generation, m.number, m.psn); }
auto Fields(Bye&) { return std::tie(); }
auto Fields(NewAddress& m) { return std::tie(m.rail, m.facts, m.reads, m.lid, m.pkey, m.gid); }

template <typename M>
void PutFields(BasicByteWriter<MessageBytes>& out, M message) {
  out.Put(Fields(message));
}

template <typename M>
std::optional<M> GetLast(ByteReader& in) {
  M message;
  in.Get(Fields(message));
  if (!in.AtEnd()) return std::nullopt;
  return message;
}

template <size_t... I>
std::optional<ControlMessage> ParseControl(size_t kind, ByteReader& in, std::index_sequence<I...>) {
  std::optional<ControlMessage> found;
  const auto look = [&]<size_t N>() {
    if (kind != N) return;
    if (const auto message = GetLast<std::variant_alternative_t<N, ControlMessage>>(in)) found = *message;
  };
  (look.template operator()<I>(), ...);
  return found;
}

bool IsGrant(const GrantName& grant) { return grant.slot > 0 && grant.slot < kGrantSlots && grant.id != 0; }

/// What a field may hold beyond its type.
bool InRange(const ControlMessage& control) {
  return std::visit(
      [](const auto& message) {
        if constexpr (requires { message.lease; }) {
          if (message.lease == 0 || message.lease >= kLeases) return false;
        }
        if constexpr (requires { message.grant; }) return IsGrant(message.grant);
        if constexpr (requires { message.facts; }) {
          const uint8_t mtu = message.facts & ~kAddressGrh;
          return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096;
        }
        if constexpr (requires { message.number; })
          return message.number < 1U << 24 && message.psn < 1U << 24;
        return true;
      },
      control);
}

}  // namespace

MessageBytes Encode(const Message& message) {
  BasicByteWriter<MessageBytes> out;
  if (const auto* probe = std::get_if<Probe>(&message)) {
    out.Put(kProbe);
    PutFields(out, *probe);
  } else if (const auto* record = std::get_if<Record>(&message)) {
    out.Put(kRecord);
    PutFields(out, *record);
  } else {
    const auto& numbered = std::get<Numbered>(message);
    out.Put(static_cast<uint8_t>(kControl + numbered.message.index()), numbered.cookie, numbered.number);
    std::visit([&out](const auto& control) { PutFields(out, control); }, numbered.message);
  }
  return out.Take();
}

std::optional<Message> ParseMessage(std::string_view bytes) {
  ByteReader in(bytes);
  const auto kind = in.Get<uint8_t>();
  if (kind == kProbe) {
    if (const auto probe = GetLast<Probe>(in)) return *probe;
    return std::nullopt;
  }
  if (kind == kRecord) {
    const auto record = GetLast<Record>(in);
    if (!record || record->lease >= kLeases) return std::nullopt;
    return *record;
  }
  Numbered numbered;
  if (kind < kControl) return std::nullopt;
  in.Get(numbered.cookie, numbered.number);
  const auto control =
      ParseControl(kind - kControl, in, std::make_index_sequence<std::variant_size_v<ControlMessage>>{});
  if (!control || !InRange(*control)) return std::nullopt;
  numbered.message = *control;
  return numbered;
}

}  // namespace weightcast::transport::verbs
