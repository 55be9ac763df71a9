#include "worker/session.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "base/advice.h"
#include "base/log.h"
#include "base/process.h"
#include "base/socket.h"
#include "base/strings.h"
#include "base/thread.h"
#include "control/token.h"
#include "protocol/identity.h"
#include "worker/commit_group.h"
#include "worker/options.h"

namespace weightcast::worker {
namespace {

constexpr auto kBetweenViews = std::chrono::milliseconds(200);
constexpr auto kBetweenLooks = std::chrono::milliseconds(100);
/// What endpoint and client open before there is any peer, and a few peers.
constexpr size_t kSessionDescriptors = 48;

Status CheckOptions(const WorkerOptions& options, protocol::Role role) {
  if (options.world_size == 0 || options.rank >= options.world_size) {
    return Error(Code::kInvalidArgument, "rank is ", options.rank, ", world_size is ", options.world_size,
                 "; rank must be an integer in [0, world_size - 1]: correct one of the two");
  }
  if (role == protocol::Role::kInference && options.engine.empty())
    return {Code::kInvalidArgument,
            "an inference rank was made without the name of its engine; give one in the option engine"};
  return Status::Ok();
}

std::optional<Duration> LimitOf(const WorkerOptions& options, const Settings& settings) {
  if (options.patient) return std::nullopt;
  return settings.controller_timeout > Duration::zero() ? settings.controller_timeout : 2 * settings.lease;
}

/// A job whose controller is on loopback is on this host alone. So are the worker's data ports, unless a
/// setting says where they are. Only addresses and "localhost" count: another name may lead elsewhere
/// tomorrow.
Settings OnLoopbackLikeTheController(Settings settings) {
  if (!settings.bind.empty() || !settings.advertise.empty() || !settings.interface.empty()) return settings;
  const auto controller = ParseHostPort(settings.controller);
  if (!controller.ok()) return settings;
  const auto numeric = SocketAddress::Parse(settings.controller);
  if (controller->host == "localhost") settings.bind = "127.0.0.1";
  if (numeric.ok() && numeric->IsLoopback())
    settings.bind = numeric->family() == AF_INET6 ? "::1" : "127.0.0.1";
  return settings;
}

}  // namespace

Session::Session(const WorkerOptions& options, protocol::Role role, Settings settings, Handlers handlers)
    : name_{role, role == protocol::Role::kInference ? options.engine : std::string(), options.rank},
      model_(options.model),
      secret_(protocol::NewSecret()),
      commit_group_(CommitGroup::RanksText(options)),
      world_size_(options.world_size),
      settings_(OnLoopbackLikeTheController(std::move(settings))),
      handlers_(std::move(handlers)),
      interrupted_(options.interrupted),
      absence_(std::make_shared<control::Absence>()),
      patience_{absence_, LimitOf(options, settings_)},
      loop_("wc-worker") {}

Session::~Session() = default;

Result<std::unique_ptr<Session>> Session::Open(const WorkerOptions& options, protocol::Role role,
                                               Handlers handlers) {
  WC_RETURN_IF_ERROR(CheckOptions(options, role));
  WC_ASSIGN_OR_RETURN(Settings settings, SettingsOf(options));
  RaiseDescriptorLimit();
  WC_RETURN_IF_ERROR(CheckDescriptors(kSessionDescriptors));
  WC_RETURN_IF_ERROR(CheckThreads(kLeastThreads));
  std::unique_ptr<Session> session(new Session(options, role, std::move(settings), std::move(handlers)));
  WC_RETURN_IF_ERROR(session->loop_.Start());
  if (!session->settings_.metrics.empty()) {
    WC_ASSIGN_OR_RETURN(session->exporter_, http::Exporter::For(session->settings_.metrics));
  }
  WC_RETURN_IF_ERROR(session->OpenEndpoint());
  return session;
}

Status Session::Begin() {
  // In the loop, so that no callback finds anything unset: tasks run one after another.
  loop_.Post([this] {
    begun_ = true;
    if (Status status = OpenClient(); !status.ok()) SetOutcome(status);
  });
  // The client gives up by itself.
  const Limits limits{.deadline = TimePoint::max(), .interrupted = interrupted_};
  std::optional<Status> outcome;
  told_.Wait(limits, [&](const Told& told) { return (outcome = told.outcome).has_value(); });
  return outcome ? *outcome : InterruptedCall(StrCat("joining the controller at ", settings_.controller));
}

/// What comes from the endpoint before Begin concerns nobody.
void Session::PostIfBegun(std::function<void()> task) {
  loop_.Post([this, task = std::move(task)] {
    if (begun_) task();
  });
}

Status Session::OpenEndpoint() {
  WC_ASSIGN_OR_RETURN(const auto token, control::LoadToken(settings_));
  EndpointOptions options;
  options.self = protocol::IdentityOf(settings_.job, name_, protocol::IncarnationOf(secret_));
  options.token = token.text();
  options.key_of = [this](const Identity& peer) { return KeyOf(peer); };
  options.settings = settings_;
  options.admit = [this](const Identity& peer) { return Admit(peer); };
  options.on_connection = [this](const Connection& connection) {
    PostIfBegun([this, peer = connection.peer()] { handlers_.on_connected(peer); });
  };
  options.on_disconnect = [this](const Identity& peer, const Status& status) {
    PostIfBegun([this, peer, status] { handlers_.on_disconnected(peer, status); });
  };
  WC_ASSIGN_OR_RETURN(endpoint_, Endpoint::Create(std::move(options)));
  return Status::Ok();
}

Status Session::OpenClient() {
  control::ClientOptions client;
  client.settings = settings_;
  client.patient = !patience_.limit.has_value();
  client.absence = absence_;
  client.hello.model = model_;
  client.hello.name = name_;
  client.hello.world_size = world_size_;
  client.hello.incarnation = endpoint_->self().incarnation;
  client.hello.secret = secret_;
  client.hello.addresses = endpoint_->Addresses();
  client.hello.host = HostName();
  client.on_message = [this](protocol::ControllerMessage message) {
    auto shared = std::make_shared<protocol::ControllerMessage>(std::move(message));
    loop_.Post([this, shared] { OnMessage(std::move(*shared)); });
  };
  client.on_state = [this](control::LinkState state, const Status& status) {
    if (state == control::LinkState::kBroken && !status.ok())
      WC_LOG(kWarning, text(), ": no connection to the controller, which is tried again: ", status.message());
    if (state != control::LinkState::kEnded) return;
    const Status end = commit_group_.empty() || status.ok()
                           ? status
                           : Error(status.code(), status.message(), " (", commit_group_, ")");
    told_.Change([&](Told& told) { told.end = AsOutcome(end); });
    loop_.Post([this, end] {
      handlers_.on_ended(AsOutcome(end));
      SetOutcome(end);
    });
  };
  WC_ASSIGN_OR_RETURN(client_, control::ControlClient::Start(std::move(client)));
  return Status::Ok();
}

void Session::OnMessage(protocol::ControllerMessage message) {
  if (const auto* lost = std::get_if<protocol::Lost>(&message)) {
    const LogLevel level = lost->reason.code() == Code::kCancelled ? LogLevel::kInfo : LogLevel::kWarning;
    if (level >= GetLogLevel()) Log(level, lost->reason.message());  // A graceful end needs no warning.
  }
  const bool welcome = std::holds_alternative<protocol::Welcome>(message);
  handlers_.on_message(std::move(message));
  if (welcome) SetOutcome(Status::Ok());
}

/// Bytes flow from trainers to inference ranks, and between these. Which incarnation of a rank may write is
/// decided by the plan: it alone is given a grant.
Status Session::Admit(const Identity& peer) const {
  const bool inference = name_.role == protocol::Role::kInference;
  if (peer.role == protocol::RoleText(protocol::Role::kInference)) return Status::Ok();
  if (inference && peer.role == protocol::RoleText(protocol::Role::kTrainer)) return Status::Ok();
  return Error(Code::kPermission, text(), " takes connections from ", inference ? "trainers and " : "",
               "inference workers only, ", "not from ", ToString(peer), "; correct the address that ",
               ToString(peer), " connects to");
}

Result<protocol::ClusterView> Session::View() {
  const TimePoint deadline = patience_.limit ? Clock::now() + *patience_.limit : TimePoint::max();
  for (;;) {
    // Whether there is one the client knows best.
    const Status absent = absence_->Told();
    auto view = absent.ok() ? ViewOnce(deadline) : Result<protocol::ClusterView>(absent);
    const TimePoint now = Clock::now();
    const bool away = view.status().code() == Code::kUnavailable || view.status().code() == Code::kTimedOut;
    if (!away || now >= deadline) return view;
    const Limits limits{.deadline = std::min(deadline, now + kBetweenViews), .interrupted = interrupted_};
    std::optional<Status> end;
    const Woken woken = told_.Wait(limits, [&](const Told& told) { return (end = told.end).has_value(); });
    if (end) return *end;
    if (woken == Woken::kInterrupted)
      return InterruptedCall(StrCat("asking the controller at ", settings_.controller));
  }
}

/// Looks at interruptions meanwhile.
Result<protocol::ClusterView> Session::ViewOnce(TimePoint deadline) {
  const Duration attempt = std::max<Duration>(2 * settings_.lease, std::chrono::seconds(1));
  deadline = std::min(deadline, Clock::now() + attempt);
  WC_ASSIGN_OR_RETURN(const auto stream, control::ViewStream::Open(settings_));
  for (;;) {
    const TimePoint look = std::min(deadline, Clock::now() + kBetweenLooks);
    auto view = stream->Next(look);
    if (view.status().code() != Code::kTimedOut || look == deadline) return view;
    if (interrupted_ && interrupted_())
      return InterruptedCall(StrCat("asking the controller at ", settings_.controller));
  }
}

void Session::SetOutcome(const Status& status) {
  told_.Change([&](Told& told) {
    if (!told.outcome) told.outcome = status;
  });
}

Identity Session::IdentityOf(const protocol::Member& member) const {
  return protocol::IdentityOf(settings_.job, member.name, member.incarnation);
}

std::string Session::KeyOf(const Identity& initiator) const { return protocol::PairKey(secret_, initiator); }

std::vector<std::string> Session::ConnectionMap() const {
  std::vector<std::string> lines;
  const std::lock_guard lock(map_mutex_);
  if (endpoint_ == nullptr) return lines;
  for (const PeerInfo& peer : endpoint_->Peers())
    lines.push_back(StrCat(ToString(peer.identity), ": ", peer.description));
  return lines;
}

trace::Labels Session::labels() const {
  trace::Labels labels{{"model", model_}};
  if (name_.role == protocol::Role::kInference) labels.emplace_back("engine", name_.engine);
  labels.emplace_back("rank", std::to_string(name_.rank));
  return labels;
}

void Session::CloseEndpoint() {
  std::unique_ptr<Endpoint> endpoint;
  {
    const std::lock_guard lock(map_mutex_);
    endpoint = std::move(endpoint_);
  }
}

void Session::Leave() {
  exporter_.reset();
  if (client_ != nullptr) client_->Leave(Clock::now() + kLeaveTime);
  loop_.Stop();  // Its tasks use the client.
  client_.reset();
}

}  // namespace weightcast::worker
