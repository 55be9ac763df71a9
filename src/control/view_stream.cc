#include <optional>
#include <utility>

#include "base/strings.h"
#include "control/client.h"
#include "control/conduit.h"
#include "control/token.h"
#include "protocol/codec.h"

namespace weightcast::control {
namespace {

class ObserverStream final : public ViewStream {
 public:
  ObserverStream(std::string address, std::unique_ptr<Conduit> conduit, std::shared_ptr<SessionLink> link)
      : address_(std::move(address)), conduit_(std::move(conduit)), link_(std::move(link)) {}

  Result<protocol::ClusterView> Next(TimePoint deadline) override {
    WC_ASSIGN_OR_RETURN(const std::string encoded, NextMessage(deadline));
    return protocol::DecodeClusterView(encoded);
  }

  Result<protocol::Trace> Trace(uint64_t from, TimePoint deadline) override {
    if (!asked_) {
      WC_ASSIGN_OR_RETURN(const SharedPacket packet, MakePacket(protocol::AskTrace{from}));
      link_->PushUrgent(packet);
      conduit_->Kick();
      asked_ = true;
    }
    while (true) {
      WC_ASSIGN_OR_RETURN(const std::string encoded, NextMessage(deadline));
      if (protocol::IsView(encoded)) continue;  // From before it asked.
      asked_ = false;
      return protocol::DecodeTrace(encoded);
    }
  }

 private:
  Result<std::string> NextMessage(TimePoint deadline) {
    while (end_.ok()) {
      auto event = conduit_->Next(deadline);
      switch (event.kind) {
        case Conduit::Event::Kind::kMessage:
          return Unpack(std::move(event.parcel));
        case Conduit::Event::Kind::kClosed:
          end_ = event.reason;
          break;
        case Conduit::Event::Kind::kNone:
          return Status(Code::kTimedOut, StrCat("no answer from the controller at ", address_,
                                                " in time; check that it runs and the address"));
        case Conduit::Event::Kind::kWoken:
        case Conduit::Event::Kind::kPiece:
          break;
      }
    }
    return end_;
  }

  const std::string address_;
  const std::unique_ptr<Conduit> conduit_;
  const std::shared_ptr<SessionLink> link_;
  bool asked_ = false;  ///< And not answered yet.
  Status end_;
};

}  // namespace

Result<std::unique_ptr<ViewStream>> ViewStream::Open(const Settings& settings) {
  WC_ASSIGN_OR_RETURN(const Token token, LoadToken(settings));
  WC_ASSIGN_OR_RETURN(stream::RoleToken role, token.ForObserver());
  WC_ASSIGN_OR_RETURN(auto conduit, Conduit::Create());
  auto link = std::make_shared<SessionLink>();
  WC_RETURN_IF_ERROR(conduit->Dial({.address = settings.controller,
                                    .token = std::move(role),
                                    .purpose = stream::Purpose::kObserve,
                                    .lease = settings.lease},
                                   link));
  return std::unique_ptr<ViewStream>(
      std::make_unique<ObserverStream>(settings.controller, std::move(conduit), std::move(link)));
}

Result<protocol::ClusterView> GetView(const Settings& settings, TimePoint deadline) {
  WC_ASSIGN_OR_RETURN(const auto stream, ViewStream::Open(settings));
  return stream->Next(deadline);
}

}  // namespace weightcast::control
