#include "control/envelope.h"

#include <utility>

#include "base/bytes.h"
#include "base/strings.h"
#include "plan/table_format.h"
#include "protocol/limits.h"
#include "stream/frame.h"

namespace weightcast::control {

static_assert(protocol::kMaxWholeBytes + kEnvelopeHead <= stream::kMostFrameBytes);
static_assert(plan::kMaxPieceBytes + kEnvelopeHead <= stream::kMostFrameBytes);

std::string Enclose(const Envelope& envelope, std::string_view part) {
  ByteWriter out;
  out.Put(envelope.number);
  out.Put(envelope.acknowledged);
  out.Put(envelope.session);
  out.Put(static_cast<uint8_t>(envelope.kind));
  out.PutRaw(part);
  return out.Take();
}

std::string Enclose(const Outgoing& out) {
  const Envelope envelope{
      .number = out.number, .acknowledged = out.acknowledged, .session = out.session, .kind = out.kind};
  return Enclose(envelope, out.packet->parts[out.part]);
}

Result<Opened> OpenEnvelope(std::string body) {
  ByteReader reader(body);
  Opened opened;
  opened.envelope.number = reader.Get<uint64_t>();
  opened.envelope.acknowledged = reader.Get<uint64_t>();
  opened.envelope.session = reader.Get<uint64_t>();
  const auto kind = reader.Get<uint8_t>();
  if (!reader.ok())
    return Error(Code::kProtocol, "it sent a message of ", body.size(), " bytes, below the header's ",
                 kEnvelopeHead, "; use the same weightcast on all hosts");
  if (kind > static_cast<uint8_t>(PartKind::kLast))
    return Error(Code::kProtocol, "it sent a message part of the unknown kind ", static_cast<int>(kind),
                 ", above ", static_cast<int>(PartKind::kLast), "; use the same weightcast on all hosts");
  opened.envelope.kind = static_cast<PartKind>(kind);
  body.erase(0, kEnvelopeHead);
  opened.part = std::move(body);
  return opened;
}

}  // namespace weightcast::control
