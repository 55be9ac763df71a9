#include <memory>
#include <utility>

#include "base/log.h"
#include "base/process.h"
#include "base/socket.h"
#include "base/strings.h"
#include "base/thread.h"
#include "control/core.h"
#include "control/listener.h"
#include "control/page_server.h"
#include "control/token.h"
#include "http/exporter.h"
#include "weightcast/settings.h"
#include "weightcast/worker.h"

namespace weightcast {
namespace {

/// What the listener opens before there is any worker, and a few workers.
constexpr size_t kLeastDescriptors = 32;
constexpr size_t kLeastThreads = 8;

/// Without a token that the user has chosen, only processes of this host may come.
Status CheckReach(const HostPort& listen, const control::Token& token) {
  if (token.configured()) return Status::Ok();
  WC_ASSIGN_OR_RETURN(const auto addresses, Resolve(listen.host, listen.port));
  for (const SocketAddress& address : addresses) {
    if (!address.IsLoopback())
      return Error(Code::kPermission, "without a job token the controller listens on loopback only, not on ",
                   address.Host(),
                   "; give controller and workers the same WEIGHTCAST_TOKEN or setting token_file");
  }
  return Status::Ok();
}

class ControllerServer final : public Controller {
 public:
  static Result<std::unique_ptr<Controller>> Make(Options options) {
    if (!options.listen.empty()) options.settings["controller"] = options.listen;
    WC_ASSIGN_OR_RETURN(const Settings settings, Settings::From(options.settings));
    WC_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(settings.controller));
    WC_ASSIGN_OR_RETURN(const control::Token token, control::LoadToken(settings));
    WC_ASSIGN_OR_RETURN(const stream::MasterToken master, token.Master());
    RaiseDescriptorLimit();
    WC_RETURN_IF_ERROR(CheckDescriptors(kLeastDescriptors));
    WC_RETURN_IF_ERROR(CheckThreads(kLeastThreads));
    WC_RETURN_IF_ERROR(CheckReach(listen, token));
    auto server = std::unique_ptr<ControllerServer>(new ControllerServer(settings, !options.http.empty()));
    WC_RETURN_IF_ERROR(server->core_.Start());
    WC_ASSIGN_OR_RETURN(server->listener_, control::Listener::Start({.host = listen.host,
                                                                     .port = listen.port,
                                                                     .master = master,
                                                                     .lease = settings.lease,
                                                                     .handlers = server->core_.Handlers()}));
    if (!settings.metrics.empty()) {
      WC_ASSIGN_OR_RETURN(server->exporter_, http::Exporter::For(settings.metrics));
    }
    if (!options.http.empty()) {
      WC_ASSIGN_OR_RETURN(server->page_, control::PageServer::Start(options.http, token, server->shown_));
    }
    const bool v6 = listen.host.find(':') != std::string::npos;
    server->address_ =
        StrCat(v6 ? "[" : "", listen.host, v6 ? "]:" : ":", static_cast<int>(server->listener_->port()));
    WC_LOG(kInfo, "controller of job '", settings.job, "' listens on ", server->address_,
           "; token: ", token.origin());
    return std::unique_ptr<Controller>(std::move(server));
  }
  ~ControllerServer() override { Stop(); }

  [[nodiscard]] std::string address() const override { return address_; }
  [[nodiscard]] std::string http_address() const override { return page_ == nullptr ? "" : page_->address(); }
  void Stop() override {
    exporter_.reset();
    page_.reset();
    core_.Stop();  // Ends the streams.
    if (listener_ != nullptr) listener_->Stop();
  }

 private:
  ControllerServer(const Settings& settings, bool shows)
      : shown_(shows ? std::make_shared<control::PageState>() : nullptr), core_(settings, shown_) {}

  const std::shared_ptr<control::PageState> shown_;
  control::Core core_;
  std::unique_ptr<control::Listener> listener_;
  std::shared_ptr<http::Exporter> exporter_;
  std::unique_ptr<control::PageServer> page_;
  std::string address_;
};

}  // namespace

Result<std::unique_ptr<Controller>> Controller::Start(Options options) {
  return ControllerServer::Make(std::move(options));
}

}  // namespace weightcast
