#include "peertest/caller.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "protocol/worker_messages.h"

namespace weightcast::peertest {
namespace {

constexpr auto kLook = std::chrono::milliseconds(100);

using Event = stream::ClientStream::Event;

std::string StageOf(const Status& why) {
  if (why.code() == Code::kPermission) return "token";
  return why.code() == Code::kProtocol ? "version" : "reach";
}

/// Streams speak of the controller; here it is the serving host.
std::string OfServe(std::string text) {
  for (const std::string_view from : {"a weightcast controller", "the controller"}) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + 1))
      text.replace(at, from.size(), from[0] == 'a' ? "`weightcast doctor --serve`" : "the host that serves");
  }
  return text;
}

}  // namespace

Caller::Opened Caller::Connect(Options options) {
  auto stream = stream::ClientStream::Create();
  if (!stream.ok()) return {nullptr, {"reach", stream.status().message()}};
  std::unique_ptr<Caller> made(new Caller(std::move(*stream), std::move(options)));
  Failure failure = made->Open();
  if (failure.stage.empty()) return {std::move(made), {}};
  return {nullptr, std::move(failure)};
}

Failure Caller::Open() {
  const Status begun = stream_->Connect({.address = options_.address,
                                         .version = protocol::kProtocolVersion,
                                         .token = options_.token,
                                         .purpose = stream::Purpose::kControl,
                                         .lease = kConversationLease});
  if (!begun.ok()) return {StageOf(begun), OfServe(begun.message())};
  auto event = Next(options_.deadline);
  if (!event.ok()) {
    stream_->Abort();
    if (event.status().code() == Code::kCancelled) return {"test", event.status().message()};
    return {"reach",
            StrCat("no answer from ", options_.address, ": packets vanish, or a firewall drops them")};
  }
  if (event->kind == Event::Kind::kOpened) return {};
  return {StageOf(event->reason), OfServe(event->reason.message())};
}

bool Caller::Tells(const Event& event) {
  return event.kind == Event::Kind::kOpened || event.kind == Event::Kind::kMessage ||
         event.kind == Event::Kind::kClosed;
}

Result<Event> Caller::Next(TimePoint deadline) {
  for (;;) {
    if (options_.interrupted && options_.interrupted())
      return Status(Code::kCancelled, "the test was stopped by a signal to this process; run the test again");
    if (early_) return *std::exchange(early_, std::nullopt);
    Event event = stream_->Next(std::min(deadline, In(kLook)));
    if (Tells(event)) return event;
    if (Clock::now() >= deadline)
      return Error(
          Code::kTimedOut, "the host at ", options_.address,
          " does not answer in time; check `weightcast doctor --serve` there, and run the test again");
  }
}

Status Caller::Send(const Request& request) {
  WC_RETURN_IF_ERROR(over_);
  WC_RETURN_IF_ERROR(stream_->Send(Encode(request)));
  // It goes out now, not with the next wait: both sides may have something to do meanwhile.
  if (Event event = stream_->Next(Clock::now()); Tells(event)) early_ = std::move(event);
  return Status::Ok();
}

Result<Reply> Caller::Receive(Duration patience) {
  WC_RETURN_IF_ERROR(over_);
  auto event = Next(In(patience));
  if (!event.ok()) {
    stream_->Abort();
    over_ = event.status();
    return over_;
  }
  if (event->kind == Event::Kind::kMessage) {
    auto reply = DecodeReply(event->body);
    if (reply.ok()) return reply;
    return Error(reply.status().code(), "the host at ", options_.address, ": ", reply.status().message());
  }
  over_ = {event->reason.code() == Code::kOk ? Code::kUnavailable : event->reason.code(),
           StrCat("the host at ", options_.address, " ended the test: ", OfServe(event->reason.message()))};
  return over_;
}

Status Caller::WrongAnswer() const {
  return Error(Code::kProtocol, "the host at ", options_.address,
               " sent another kind of answer than was asked for; use the same weightcast on both");
}

}  // namespace weightcast::peertest
