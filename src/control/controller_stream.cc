#include "control/controller_stream.h"

#include "base/advice.h"
#include "base/strings.h"
#include "control/envelope.h"
#include "protocol/worker_messages.h"

namespace weightcast::control {
namespace {

ControllerStream::Event Closed(Status reason) {
  return {.kind = ControllerStream::Event::Kind::kClosed, .reason = std::move(reason)};
}

}  // namespace

Result<std::unique_ptr<ControllerStream>> ControllerStream::Create() {
  WC_ASSIGN_OR_RETURN(auto stream, stream::ClientStream::Create());
  return std::unique_ptr<ControllerStream>(new ControllerStream(std::move(stream)));
}

Status ControllerStream::Connect(stream::ClientStream::Target target, std::shared_ptr<SessionLink> link) {
  address_ = target.address;
  link_ = std::move(link);
  assembler_ = {};
  proven_ = false;
  target.version = protocol::kProtocolVersion;
  return stream_->Connect(std::move(target));
}

void ControllerStream::Kick() {
  while (proven_ && link_ != nullptr && stream_->queued() < stream::kLowWater) {
    const auto next = link_->Next();
    if (!next || !stream_->Send(Enclose(*next)).ok()) return;  // Next tells why.
  }
}

ControllerStream::Event ControllerStream::Next(TimePoint until) {
  using Kind = stream::ClientStream::Event::Kind;
  auto event = stream_->Next(until);
  switch (event.kind) {
    case Kind::kNone:
      return {};
    case Kind::kOpened:
      proven_ = true;
      break;
    case Kind::kWoken:
    case Kind::kRoom:
      break;
    case Kind::kPartial:
      return {.kind = Event::Kind::kPiece};
    case Kind::kMessage:
      return Take(std::move(event.body));
    case Kind::kClosed:
      return Closed(WhyClosed(event.reason));
  }
  Kick();
  return {.kind = Event::Kind::kWoken};
}

ControllerStream::Event ControllerStream::Take(std::string body) {
  const auto protocol_error = [this](const Status& why) {
    stream_->Abort();
    return Closed(BrokeProtocol(StrCat("the controller at ", address_), why));
  };
  auto opened = OpenEnvelope(std::move(body));
  if (!opened.ok()) return protocol_error(opened.status());
  auto message = assembler_.Add(opened->envelope.kind, std::move(opened->part));
  if (!message.ok()) return protocol_error(message.status());
  if (!*message) return {.kind = Event::Kind::kPiece};
  return {.kind = Event::Kind::kMessage,
          .number = opened->envelope.number,
          .acknowledged = opened->envelope.acknowledged,
          .session = opened->envelope.session,
          .message = std::move(**message)};
}

Status ControllerStream::WhyClosed(const Status& reason) const {
  if (!proven_) return reason;
  // A controller that has proven itself is worth another try, whatever it said.
  return Error(Code::kUnavailable, "the stream to the controller at ", address_,
               " has ended, and is opened again: ", reason.message());
}

}  // namespace weightcast::control
