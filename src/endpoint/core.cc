#include "endpoint/core.h"

#include <algorithm>

#include "base/advice.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/process.h"
#include "base/random.h"
#include "base/split_list.h"
#include "base/strings.h"
#include "stream/shared_key.h"

namespace weightcast::endpoint {
namespace {

using Created = std::vector<Links::Created>;
using Factories = std::span<const transport::TransportFactory>;

Status CheckNames(const Identity& self) {
  for (const std::string& name : {self.job, self.role, self.engine}) {
    if (name.size() > kMaxName) {
      return Error(Code::kInvalidArgument, "the name '", name, "' has ", name.size(),
                   " bytes; job, role and engine may have at most ", kMaxName, " each: shorten that name");
    }
  }
  return Status::Ok();
}

Status AddTransport(const transport::TransportFactory& factory, const EndpointOptions& options,
                    Poller& poller, Created& created) {
  const bool twice = std::ranges::find(created, factory.name, &Links::Created::name) != created.end();
  if (twice)
    return Error(Code::kInvalidArgument, "setting transport names ", factory.name, " twice; name it once");
  auto transport = factory.create({.settings = options.settings, .self = options.self.incarnation});
  if (!transport.ok()) {
    return Error(transport.status().code(), "transport ", factory.name, ": ", transport.status().message());
  }
  WC_RETURN_IF_ERROR(poller.Add((*transport)->fd(), EPOLLIN, 0));
  created.push_back({std::string(factory.name), std::move(*transport)});
  return Status::Ok();
}

/// All, or those that the setting names, in its order.
Result<Created> CreateTransports(const EndpointOptions& options, Factories factories, Poller& poller) {
  Created created;
  const auto wanted = SplitList(options.settings.transport);
  for (const std::string_view name : wanted) {
    const auto found = std::ranges::find(factories, name, &transport::TransportFactory::name);
    if (found == factories.end()) {
      return Error(Code::kInvalidArgument, "setting transport has '", name,
                   "', which is not a transport; allowed: ",
                   Join(factories, ", ", &transport::TransportFactory::name));
    }
    WC_RETURN_IF_ERROR(AddTransport(*found, options, poller, created));
  }
  std::string reasons;
  for (size_t i = 0; i < factories.size() && wanted.empty(); ++i) {
    Status status = AddTransport(factories[i], options, poller, created);
    if (status.ok()) continue;
    reasons += StrCat("; ", status.message());
    // A machine without such hardware is no surprise; hardware that does not work is one.
    if (status.code() == Code::kUnavailable) {
      WC_LOG(kInfo, "going on without ", status.message());
    } else {
      WC_LOG(kWarning, "going on without ", status.message());
    }
  }
  if (created.empty()) return Error(Code::kUnavailable, "no transport works on this machine", reasons);
  return created;
}

}  // namespace

Core::Core(EndpointOptions options)
    : options_(std::move(options)),
      boot_id_(BootId()),
      forks_(ForkCount()),
      device_memory_(options_.settings),
      regions_(options_.self.incarnation,
               {.submit =
                    [this](std::function<void()> task) {
                      if (!forked()) SubmitNow(*progress_, std::move(task));
                    },
                .cancel = [this](const RegisteredMemory& registration) { links_.EndUsing(registration); },
                .describe = [this](const Memory& memory) { return device_memory_.Describe(memory); }}),
      links_(regions_, timers_, [this] { CheckFenced(); }) {}

bool Core::forked() const { return forks_ != ForkCount(); }

Status Core::Usable() const {
  if (forked()) {
    return {Code::kInternal, "an endpoint cannot be used in a forked child; create a new one there"};
  }
  if (closed_.load(std::memory_order_relaxed)) return ClosedHere("the endpoint");
  return Status::Ok();
}

Result<std::shared_ptr<Core>> Core::Create(EndpointOptions options, Factories factories) {
  CountForks();
  if (options.self.job.empty()) options.self.job = options.settings.job;
  if (options.self.incarnation == 0) options.self.incarnation = RandomId();
  WC_RETURN_IF_ERROR(CheckNames(options.self));
  std::shared_ptr<Core> core(new Core(std::move(options)));
  WC_RETURN_IF_ERROR(core->Init(factories));
  return core;
}

Status Core::Init(Factories factories) {
  WC_ASSIGN_OR_RETURN(progress_, Progress::Create(links_));
  callbacks_ = std::make_unique<UserCallbacks>(*progress_);
  sockets_ = std::make_unique<Sockets>(progress_->poller());
  Settings of_listener = settings();  // Transports listen on ports of their own.
  if (options_.port != 0) of_listener.port_range = StrCat(options_.port, "-", options_.port);
  WC_ASSIGN_OR_RETURN(listener_, HandshakeListener::Open(of_listener));
  if (options_.token.empty() && !listener_->loopback_only()) {
    return {Code::kPermission,
            "no job token: set WEIGHTCAST_TOKEN_FILE, or setting bind to 127.0.0.1 to stay on this machine"};
  }
  if (!options_.token.empty()) {
    WC_ASSIGN_OR_RETURN(const stream::Secret key, stream::SharedKeyOf(options_.token, stream::Purpose::kPeers,
                                                                      "the endpoint's options"));
    peers_key_ = key.bytes();
    options_.token.clear();
  }
  WC_ASSIGN_OR_RETURN(Poller poller, Poller::Create());
  WC_ASSIGN_OR_RETURN(Created transports, CreateTransports(options_, factories, poller));
  WC_RETURN_IF_ERROR(links_.Start(*sockets_, std::move(poller), std::move(transports)));
  lingering_ = std::make_unique<LingeringChannels>(*sockets_, timers_);
  connections_ = std::make_unique<Connections>(context());
  handshakes_ = std::make_unique<Handshakes>(
      context(),
      Hello{.port = listener_->port(),
            .identity = self(),
            .boot_id = boot_id_,
            .chunk = settings().chunk,
            .lease = settings().lease},
      *connections_, *lingering_,
      [this](const Identity& peer) {
        return options_.key_of ? Key{Key::Of::kPair, options_.key_of(peer)} : Key{Key::Of::kJob, peers_key_};
      },
      [this](Proven proven) { OnProven(std::move(proven)); });
  WC_RETURN_IF_ERROR(listener_->Start(*sockets_, timers_, *handshakes_));
  if (options_.callbacks == Callbacks::kInProgress) WC_RETURN_IF_ERROR(callbacks_->GiveToUser());
  return progress_->Start(shared_from_this());
}

void Core::OnProven(Proven proven) {
  if (closed_.load()) return;
  const auto connection =
      std::make_shared<Connection::State>(shared_from_this(), context(), std::move(proven));
  const auto replaced = connections_->Replace(connection);
  // The peer knows of one connection only: the newer.
  if (replaced != nullptr)
    replaced->End({Code::kUnavailable, "a newer connection to the same peer replaces this one; use that"});
  connection->Start();
}

void Core::Shutdown() {
  if (forked()) return;
  closed_.store(true);
  progress_->Call([this] {
    listener_->Stop();
    handshakes_->Stop();
    for (const auto& connection : connections_->All())
      connection->End(
          Error(Code::kCancelled, ToString(self()), " closed its endpoint; make a new one there to go on"));
    regions_.CloseAll();
    CheckFenced();
  });
  if (!progress_->WaitFor(fenced_, 1, In(settings().lease))) {
    progress_->Call([this] {
      WC_LOG(kWarning, "this endpoint ends while ", links_.Writers(), " may still write to memory that was ",
             "registered with it; do not reuse that memory before that process continues or has ended");
    });
  }
  progress_->Call([this] {
    lingering_->CloseAll();
    links_.DropTransports();
    // They may keep connections, each of which keeps this endpoint's state.
    options_.on_connection = nullptr;
    options_.on_disconnect = nullptr;
    options_.on_notice = nullptr;
  });
  if (progress_->Stop()) callbacks_->RunLeft();
}

void Core::CheckFenced() {
  if (closed_.load() && links_.empty() && regions_.open() == 0) fenced_.Set(1);
}

}  // namespace weightcast::endpoint
