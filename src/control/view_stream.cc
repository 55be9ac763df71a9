#include <algorithm>
#include <chrono>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"
#include "control/client.h"
#include "control/controller_stream.h"
#include "control/session_link.h"
#include "control/token.h"
#include "protocol/codec.h"

namespace weightcast::control {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(100);

/// What one observer asks and gets.
class ObserverStream final : public ViewStream {
 public:
  ObserverStream(std::string address, std::unique_ptr<ControllerStream> stream,
                 std::shared_ptr<SessionLink> link)
      : address_(std::move(address)), stream_(std::move(stream)), link_(std::move(link)) {}

  Result<protocol::ClusterView> Next(TimePoint deadline) override {
    return NextOf<protocol::ClusterView>(deadline);
  }
  Result<protocol::Trace> Trace(uint64_t from, TimePoint deadline) override {
    return Answer<protocol::Trace>(protocol::AskTrace{from}, deadline);
  }
  Result<protocol::Updates> Updates(const protocol::AskUpdates& ask, TimePoint deadline) override {
    return Answer<protocol::Updates>(ask, deadline);
  }

 private:
  /// A call that timed out goes on with the question of before.
  template <typename T>
  Result<T> Answer(const protocol::ObserverMessage& question, TimePoint deadline) {
    if (!asked_) {
      WC_ASSIGN_OR_RETURN(const SharedPacket packet, MakePacket(question));
      link_->PushUrgent(packet);
      stream_->Kick();
      asked_ = true;
    }
    WC_ASSIGN_OR_RETURN(T answer, NextOf<T>(deadline));
    asked_ = false;
    return answer;
  }

  /// The next message of this kind; views from before a question are skipped.
  template <typename T>
  Result<T> NextOf(TimePoint deadline) {
    while (end_.ok()) {
      auto event = stream_->Next(deadline);
      switch (event.kind) {
        case ControllerStream::Event::Kind::kMessage: {
          const auto encoded = Unpack(std::move(event.message));
          auto message = encoded.ok() ? protocol::DecodeObserverReply(*encoded)
                                      : Result<protocol::ObserverReply>(encoded.status());
          if (!message.ok()) return BrokeProtocol(StrCat("the controller at ", address_), message.status());
          if (auto* wanted = std::get_if<T>(&*message)) return std::move(*wanted);
          if (!std::holds_alternative<protocol::ClusterView>(*message))
            return Error(Code::kProtocol, "the controller at ", address_, " answered with ",
                         protocol::NameOf(*message),
                         ", which was not asked for; use the same weightcast on all hosts");
          break;
        }
        case ControllerStream::Event::Kind::kClosed:
          end_ = event.reason;
          break;
        case ControllerStream::Event::Kind::kNone:
          return Error(Code::kTimedOut, "no answer from the controller at ", address_,
                       " in time; check that it runs, and its address");
        case ControllerStream::Event::Kind::kWoken:
        case ControllerStream::Event::Kind::kPiece:
          break;
      }
    }
    return end_;
  }

  const std::string address_;
  const std::unique_ptr<ControllerStream> stream_;
  const std::shared_ptr<SessionLink> link_;
  bool asked_ = false;  ///< And not answered yet.
  Status end_;
};

}  // namespace

Result<std::unique_ptr<ViewStream>> ViewStream::Open(const Settings& settings) {
  WC_ASSIGN_OR_RETURN(const Token token, LoadToken(settings));
  WC_ASSIGN_OR_RETURN(stream::RoleToken role, token.ForObserver());
  WC_ASSIGN_OR_RETURN(auto stream, ControllerStream::Create());
  auto link = std::make_shared<SessionLink>();
  WC_RETURN_IF_ERROR(stream->Connect({.address = settings.controller,
                                      .token = std::move(role),
                                      .purpose = stream::Purpose::kObserve,
                                      .lease = settings.lease},
                                     link));
  return std::unique_ptr<ViewStream>(
      std::make_unique<ObserverStream>(settings.controller, std::move(stream), std::move(link)));
}

Result<protocol::ClusterView> GetView(const Settings& settings, TimePoint deadline) {
  WC_ASSIGN_OR_RETURN(const auto stream, ViewStream::Open(settings));
  return stream->Next(deadline);
}

Result<std::string> GetUpdates(const Settings& settings, const protocol::AskUpdates& ask, TimePoint deadline,
                               const std::function<bool()>& interrupted) {
  WC_ASSIGN_OR_RETURN(const auto stream, ViewStream::Open(settings));
  for (;;) {
    const TimePoint look = std::min(deadline, Clock::now() + kBetweenLooks);
    auto updates = stream->Updates(ask, look);
    if (interrupted && interrupted())
      return InterruptedCall(StrCat("asking the controller at ", settings.controller));
    if (updates.status().code() == Code::kTimedOut && look < deadline) continue;
    if (!updates.ok()) return updates.status();
    if (!updates->reason.ok()) return updates->reason;
    return std::move(updates->json);
  }
}

}  // namespace weightcast::control
