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
          return Status(Code::kTimedOut, StrCat("no answer from the controller at ", address_,
                                                " in time; check that it runs and the address"));
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

}  // namespace

Result<std::unique_ptr<ViewStream>> ViewStream::Open(const Settings& settings) {
  WC_ASSIGN_OR_RETURN(const Token token, LoadToken(settings));
  WC_ASSIGN_OR_RETURN(stream::RoleToken role, token.ForObserver());
  WC_ASSIGN_OR_RETURN(auto conduit, Conduit::Create());
  WC_RETURN_IF_ERROR(conduit->Dial({.address = settings.controller,
                                    .token = std::move(role),
                                    .purpose = stream::Purpose::kObserve,
                                    .lease = settings.lease},
                                   nullptr));
  return std::unique_ptr<ViewStream>(
      std::make_unique<ObserverStream>(settings.controller, std::move(conduit)));
}

Result<protocol::ClusterView> GetView(const Settings& settings, TimePoint deadline) {
  WC_ASSIGN_OR_RETURN(const auto stream, ViewStream::Open(settings));
  return stream->Next(deadline);
}

}  // namespace weightcast::control
