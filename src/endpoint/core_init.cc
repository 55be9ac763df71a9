// How an endpoint's core comes to be.

#include <algorithm>

#include "base/forks.h"
#include "base/log.h"
#include "base/random.h"
#include "base/strings.h"
#include "endpoint/core.h"
#include "stream/shared_key.h"

namespace weightcast::endpoint {
namespace {

std::vector<std::string> SplitNames(std::string_view list) {
  std::vector<std::string> names;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) names.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return names;
}

}  // namespace

Result<std::shared_ptr<Core>> Core::Create(EndpointOptions options, Factories factories) {
  CountForks();
  if (options.self.job.empty()) options.self.job = options.settings.job;
  if (options.self.incarnation == 0) options.self.incarnation = RandomId();
  std::shared_ptr<Core> core(new Core(std::move(options)));
  WC_RETURN_IF_ERROR(core->CheckOptions());
  WC_RETURN_IF_ERROR(core->Init(factories));
  return core;
}

Status Core::CheckOptions() const {
  for (const std::string& name : {self().job, self().role, self().engine}) {
    if (name.size() > kMaxName) {
      return {Code::kInvalidArgument,
              StrCat("job, role and engine have at most ", kMaxName, " bytes; shorten '", name, "'")};
    }
  }
  return Status::Ok();
}

Status Core::Init(Factories factories) {
  WC_ASSIGN_OR_RETURN(progress_, Progress::Create(*this));
  sockets_ = std::make_unique<Sockets>(progress_->poller());
  Settings of_listener = settings();  // Transports listen on ports of their own.
  if (options_.port != 0) of_listener.port_range = StrCat(options_.port, "-", options_.port);
  WC_ASSIGN_OR_RETURN(HandshakeListener listener, OpenHandshakeListener(of_listener));
  if (options_.token.empty() && !listener.loopback_only) {
    return {
        Code::kPermission,
        "no job token: set WEIGHTCAST_TOKEN_FILE, or the setting bind to 127.0.0.1 to stay on this machine"};
  }
  if (!options_.token.empty()) {
    WC_ASSIGN_OR_RETURN(const stream::Secret key, stream::SharedKeyOf(options_.token, stream::Purpose::kPeers,
                                                                      "the endpoint's options"));
    peers_key_ = key.bytes();
    options_.token.clear();
  }
  WC_ASSIGN_OR_RETURN(transport_poller_, Poller::Create());
  WC_RETURN_IF_ERROR(CreateTransports(factories));
  WC_ASSIGN_OR_RETURN(transports_key_, sockets_->Watch(transport_poller_.fd(), EPOLLIN, {}));
  manager_ = std::make_unique<ConnectionManager>(*this, std::move(listener));
  WC_RETURN_IF_ERROR(manager_->Start());
  if (options_.callbacks == Callbacks::kInProgress) WC_RETURN_IF_ERROR(progress_->GiveCallbacksToUser());
  return progress_->Start(shared_from_this());
}

/// All, or those that the setting names, in its order.
Status Core::CreateTransports(Factories factories) {
  const std::vector<std::string> wanted = SplitNames(settings().transport);
  for (const std::string& name : wanted) {
    const auto found =
        std::find_if(factories.begin(), factories.end(), [&](const auto& f) { return f.name == name; });
    if (found == factories.end()) {
      std::string names;
      for (const auto& factory : factories) names += StrCat(names.empty() ? "" : ", ", factory.name);
      return {Code::kInvalidArgument,
              StrCat("setting transport has '", name, "', which is not a transport; allowed: ", names)};
    }
    WC_RETURN_IF_ERROR(AddTransport(*found));
  }
  for (size_t i = 0; i < factories.size() && wanted.empty(); ++i) {
    Status status = AddTransport(factories[i]);
    if (status.ok()) continue;
    // A machine without such hardware is no surprise; hardware that does not work is one.
    if (status.code() == Code::kUnavailable) {
      WC_LOG(kInfo, "going on without ", status.message());
    } else {
      WC_LOG(kWarning, "going on without ", status.message());
    }
  }
  if (named_.empty())
    return {Code::kUnavailable,
            "no transport works on this machine; the log says why each was left out, and the setting "
            "transport must allow tcp, shm or verbs"};
  Regions::Transports registered;
  for (const NamedTransport& entry : named_) registered.emplace_back(entry.name, entry.transport);
  regions_.SetTransports(std::move(registered));
  return Status::Ok();
}

Status Core::AddTransport(const transport::TransportFactory& factory) {
  const bool twice =
      std::any_of(named_.begin(), named_.end(), [&](const auto& n) { return n.name == factory.name; });
  if (twice)
    return {Code::kInvalidArgument, StrCat("setting transport names ", factory.name, " twice; name it once")};
  auto transport = factory.create({.settings = settings(), .self = self().incarnation});
  if (!transport.ok()) {
    return {transport.status().code(),
            StrCat("transport ", factory.name, ": ", transport.status().message())};
  }
  WC_RETURN_IF_ERROR(transport_poller_.Add((*transport)->fd(), EPOLLIN, 0));
  named_.push_back({std::string(factory.name), transport->get()});
  transports_.push_back(std::move(*transport));
  return Status::Ok();
}

}  // namespace weightcast::endpoint
