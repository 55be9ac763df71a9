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
  return PackBytes(envelope.number, envelope.acknowledged, envelope.session, envelope.kind).append(part);
}

std::string Enclose(const Outgoing& out) { return Enclose(out, out.packet->parts[out.part]); }

Result<Opened> OpenEnvelope(std::string body) {
  ByteReader reader(body);
  Opened opened;
  Envelope& envelope = opened.envelope;
  reader.Get(envelope.number, envelope.acknowledged, envelope.session, envelope.kind);
  if (!reader.ok())
    return Error(Code::kProtocol, "it sent a message of ", body.size(), " bytes, below the header's ",
                 kEnvelopeHead, "; use the same weightcast on all hosts");
  if (envelope.kind > PartKind::kLast)
    return Error(Code::kProtocol, "it sent a message part of the unknown kind ",
                 static_cast<int>(envelope.kind), ", above ", static_cast<int>(PartKind::kLast),
                 "; use the same weightcast on all hosts");
  body.erase(0, kEnvelopeHead);
  opened.part = std::move(body);
  return opened;
}

}  // namespace weightcast::control
