#include "worker/session.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "base/log.h"
#include "base/process.h"
#include "base/random.h"
#include "base/strings.h"
#include "control/token.h"
#include "worker/options.h"

namespace weightcast::worker {
namespace {

constexpr auto kGoodbye = std::chrono::seconds(1);
constexpr auto kBetweenViews = std::chrono::milliseconds(200);
/// What endpoint and client open before there is any peer, and a few peers.
constexpr size_t kLeastDescriptors = 48;

std::string_view RoleText(wire::Role role) { return role == wire::Role::kTrainer ? "trainer" : "inference"; }

Status CheckOptions(const WorkerOptions& options, wire::Role role) {
  if (options.world_size == 0 || options.rank >= options.world_size) {
    return {Code::kInvalidArgument,
            StrCat("rank ", options.rank, " is not among 0..", static_cast<int64_t>(options.world_size) - 1,
                   "; world_size says how many there are")};
  }
  if (role == wire::Role::kInference && options.engine.empty())
    return {Code::kInvalidArgument, "an inference rank needs the name of its engine"};
  return Status::Ok();
}

}  // namespace

Session::Session(const WorkerOptions& options, wire::Role role, Settings settings, Handlers handlers)
    : name_{role, role == wire::Role::kInference ? options.engine : std::string(), options.rank},
      model_(options.model),
      world_size_(options.world_size),
      settings_(std::move(settings)),
      handlers_(std::move(handlers)),
      interrupted_(options.interrupted),
      loop_("wc-worker") {}

Session::~Session() = default;

Result<std::unique_ptr<Session>> Session::Open(const WorkerOptions& options, wire::Role role,
                                               Handlers handlers) {
  WC_RETURN_IF_ERROR(CheckOptions(options, role));
  WC_ASSIGN_OR_RETURN(Settings settings, SettingsOf(options));
  WC_RETURN_IF_ERROR(CheckDescriptors(kLeastDescriptors));
  std::unique_ptr<Session> session(new Session(options, role, std::move(settings), std::move(handlers)));
  if (!session->settings_.metrics.empty()) {
    WC_ASSIGN_OR_RETURN(session->exporter_, trace::Exporter::For(session->settings_.metrics));
  }
  WC_RETURN_IF_ERROR(session->OpenEndpoint());
  return session;
}

Status Session::Begin() {
  // In the loop, so that no callback finds anything unset: tasks run one after another.
  loop_.Post([this] {
    begun_ = true;
    if (Status status = OpenClient(); !status.ok()) SetOutcome(std::move(status));
  });
  std::unique_lock lock(mutex_);
  const Woken woken = WaitUntil(lock, changed_, TimePoint::max(), interrupted_, [&] { return decided_; });
  if (woken == Woken::kInterrupted) return {Code::kCancelled, "interrupted before the controller answered"};
  return outcome_;
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
  options.self = {.job = settings_.job,
                  .role = std::string(RoleText(name_.role)),
                  .engine = name_.engine,
                  .rank = name_.rank,
                  .incarnation = RandomId()};
  options.token = token.secret;
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
  client.hello.model = model_;
  client.hello.name = name_;
  client.hello.world_size = world_size_;
  client.hello.incarnation = endpoint_->self().incarnation;
  client.hello.addresses = endpoint_->Addresses();
  client.hello.host = HostName();
  client.on_message = [this](wire::ControllerMessage message) {
    auto shared = std::make_shared<wire::ControllerMessage>(std::move(message));
    loop_.Post([this, shared] { handlers_.on_message(std::move(*shared)); });
  };
  client.on_state = [this](control::LinkState state, const Status& status) {
    if (state == control::LinkState::kBroken && !status.ok())
      WC_LOG(kWarning, text(), ": no controller at present: ", status.message());
    if (state != control::LinkState::kEnded) return;
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      end_ = AsOutcome(status);
    }
    changed_.notify_all();
    loop_.Post([this, status] { handlers_.on_ended(status); });
  };
  WC_ASSIGN_OR_RETURN(client_, control::ControlClient::Start(std::move(client)));
  return Status::Ok();
}

/// Bytes flow from trainers to inference ranks, and between these. Which incarnation of a rank may write is
/// decided by the plan: it alone is given a grant.
Status Session::Admit(const Identity& peer) const {
  const bool inference = name_.role == wire::Role::kInference;
  if (peer.role == RoleText(wire::Role::kInference)) return Status::Ok();
  if (inference && peer.role == RoleText(wire::Role::kTrainer)) return Status::Ok();
  return {Code::kPermission, StrCat(text(), " takes connections from ", inference ? "trainers and " : "",
                                    "inference workers only, ", "not from ", ToString(peer))};
}

Result<wire::ClusterView> Session::View() {
  const Duration attempt = std::max<Duration>(2 * settings_.lease, std::chrono::seconds(1));
  const Duration patience = settings_.controller_timeout;
  const TimePoint deadline = Clock::now() + (patience > Duration::zero() ? patience : 2 * settings_.lease);
  for (;;) {
    auto view = control::GetView(settings_, std::min(deadline, Clock::now() + attempt));
    const TimePoint now = Clock::now();
    const bool away = view.status().code() == Code::kUnavailable || view.status().code() == Code::kTimedOut;
    if (!away || now >= deadline) return view;
    std::unique_lock lock(mutex_);
    const TimePoint again = std::min(deadline, now + kBetweenViews);
    const Woken woken = WaitUntil(lock, changed_, again, interrupted_, [&] { return ended_; });
    if (woken == Woken::kDone) return end_;
    if (woken == Woken::kInterrupted) return Status(Code::kCancelled, "interrupted without a controller");
  }
}

void Session::SetOutcome(Status status) {
  {
    const std::lock_guard lock(mutex_);
    if (decided_) return;
    decided_ = true;
    outcome_ = std::move(status);
  }
  changed_.notify_all();
}

Identity Session::IdentityOf(const wire::Member& member) const {
  return {.job = settings_.job,
          .role = std::string(RoleText(member.name.role)),
          .engine = member.name.engine,
          .rank = member.name.rank,
          .incarnation = member.incarnation};
}

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
  if (name_.role == wire::Role::kInference) labels.emplace_back("engine", name_.engine);
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
  if (client_ != nullptr) client_->Leave(Clock::now() + kGoodbye);
  loop_.Stop();  // Its tasks use the client.
  client_.reset();
}

void LogLoss(const wire::Lost& lost) {
  if (lost.reason.code() == Code::kCancelled) {
    WC_LOG(kInfo, lost.reason.message());
  } else {
    WC_LOG(kWarning, lost.reason.message());
  }
}

}  // namespace weightcast::worker
