#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "control/client.h"
#include "control/conduit.h"
#include "control/session_link.h"
#include "control/token.h"
#include "protocol/codec.h"

namespace weightcast::control {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(100);

Status Silent(const std::string& address) {
  return {Code::kTimedOut, StrCat("no answer from the controller at ", address,
                                  " in time; check that it runs and the address")};
}

class ObserverStream final : public ViewStream {
 public:
  ObserverStream(std::string address, std::unique_ptr<Conduit> conduit)
      : address_(std::move(address)), conduit_(std::move(conduit)) {}

  Result<protocol::ClusterView> Next(TimePoint deadline) override {
    while (end_.ok()) {
      auto event = conduit_->Next(deadline);
      switch (event.kind) {
        case Conduit::Event::Kind::kMessage: {
          WC_ASSIGN_OR_RETURN(const std::string encoded, Unpack(std::move(event.parcel)));
          return protocol::DecodeClusterView(encoded);
        }
        case Conduit::Event::Kind::kClosed:
          end_ = event.reason;
          break;
        case Conduit::Event::Kind::kNone:
          return Silent(address_);
        case Conduit::Event::Kind::kWoken:
        case Conduit::Event::Kind::kPiece:
          break;
      }
    }
    return end_;
  }

 private:
  const std::string address_;
  const std::unique_ptr<Conduit> conduit_;
  Status end_;
};

/// `link`: what the observer says; null: nothing.
Result<std::unique_ptr<Conduit>> DialAsObserver(const Settings& settings, std::shared_ptr<SessionLink> link) {
  WC_ASSIGN_OR_RETURN(const Token token, LoadToken(settings));
  WC_ASSIGN_OR_RETURN(stream::RoleToken role, token.ForObserver());
  WC_ASSIGN_OR_RETURN(auto conduit, Conduit::Create());
  WC_RETURN_IF_ERROR(conduit->Dial({.address = settings.controller,
                                    .token = std::move(role),
                                    .purpose = stream::Purpose::kObserve,
                                    .lease = settings.lease},
                                   std::move(link)));
  return conduit;
}

}  // namespace

Result<std::string> GetUpdates(const Settings& settings, const protocol::AskUpdates& ask, TimePoint deadline,
                               const std::function<bool()>& interrupted) {
  const auto link = std::make_shared<SessionLink>();
  WC_ASSIGN_OR_RETURN(SharedPacket question, MakePacket(protocol::WorkerMessage(ask)));
  link->PushUrgent(std::move(question));
  WC_ASSIGN_OR_RETURN(const auto conduit, DialAsObserver(settings, link));
  for (;;) {
    const TimePoint look = std::min(deadline, Clock::now() + kBetweenLooks);
    auto event = conduit->Next(look);
    if (event.kind == Conduit::Event::Kind::kClosed) return event.reason;
    if (interrupted && interrupted()) return Status(Code::kCancelled, "interrupted");
    if (event.kind == Conduit::Event::Kind::kNone && look == deadline) return Silent(settings.controller);
    if (event.kind != Conduit::Event::Kind::kMessage) continue;
    WC_ASSIGN_OR_RETURN(const std::string encoded, Unpack(std::move(event.parcel)));
    if (protocol::IsClusterView(encoded)) continue;  // On its way before the question came.
    WC_ASSIGN_OR_RETURN(auto message, protocol::DecodeControllerMessage(encoded));
    if (const auto* refused = std::get_if<protocol::Refused>(&message)) return refused->reason;
    auto* updates = std::get_if<protocol::Updates>(&message);
    if (updates == nullptr) return Status(Code::kProtocol, "the controller answered something else");
    return std::move(updates->json);
  }
}

Result<std::unique_ptr<ViewStream>> ViewStream::Open(const Settings& settings) {
  WC_ASSIGN_OR_RETURN(auto conduit, DialAsObserver(settings, nullptr));
  return std::unique_ptr<ViewStream>(
      std::make_unique<ObserverStream>(settings.controller, std::move(conduit)));
}

Result<protocol::ClusterView> GetView(const Settings& settings, TimePoint deadline) {
  WC_ASSIGN_OR_RETURN(const auto stream, ViewStream::Open(settings));
  return stream->Next(deadline);
}

}  // namespace weightcast::control
