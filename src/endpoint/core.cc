#include "endpoint/core.h"

#include "base/advice.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/process.h"
#include "base/random.h"
#include "base/strings.h"

namespace weightcast::endpoint {
namespace {

using transport::LinkId;
using transport::Role;

}  // namespace

Core::Core(EndpointOptions options)
    : options_(std::move(options)),
      boot_id_(BootId()),
      forks_(ForkCount()),
      device_memory_(options_.settings),
      regions_(options_.self.incarnation,
               {.submit =
                    [this](std::function<void()> task) {
                      if (!forked()) progress_->Submit(MakeTask(std::move(task)), /*now=*/true);
                    },
                .cancel =
                    [this](const RegisteredMemory& registration) {
                      for (const auto& [id, link] : links_) link.connection->EndUsing(registration);
                    },
                .describe = [this](const Memory& memory) { return device_memory_.Describe(memory); }}) {}

Core::~Core() = default;

bool Core::forked() const { return forks_ != ForkCount(); }

Status Core::Usable() const {
  if (forked()) {
    return {Code::kInternal, "an endpoint cannot be used in a forked child; create a new one there"};
  }
  if (closed_.load(std::memory_order_relaxed)) return ClosedHere("the endpoint");
  return Status::Ok();
}

std::vector<NamedTransport> Core::transports() const {
  std::vector<NamedTransport> all = named_;
  for (NamedTransport& each : all) each.why_not = regions_.WhyLeftOut(each.name);
  return all;
}

// --- Connections -------------------------------------------------------------------------------

void Core::OnProven(Proven proven) {
  if (closed_.load()) return;
  const Role role = proven.role;
  const auto connection = std::make_shared<Connection::State>(shared_from_this(), std::move(proven));
  const auto replaced = connections_->Replace(connection);
  // The peer knows of one connection only: the newer.
  if (replaced != nullptr) {
    replaced->End({Code::kUnavailable, role == Role::kResponder
                                           ? "replaced: the peer has connected again; use the new connection"
                                           : "replaced by a new connection; use that"});
  }
  connection->Start();
}

// --- Links and transports ------------------------------------------------------------------------

LinkId Core::AddLink(transport::Transport* transport, ConnectionState connection) {
  const LinkId id{++last_link_};
  links_.emplace(id, Link{transport, std::move(connection)});
  if (!transport->ArmingIsCostly()) ++cheap_links_;
  return id;
}

void Core::CloseLink(LinkId link) {
  if (const auto found = links_.find(link); found != links_.end()) found->second.transport->CloseLink(link);
}

Result<transport::RemoteRegion> Core::ImportAt(transport::Transport& transport, LinkId link,
                                               const RegionName& name, uint64_t length,
                                               std::string_view key) {
  const std::shared_lock lock(transports_mutex_);
  if (transports_.empty()) return ClosedHere("the endpoint");
  return transport.Import(link, name, length, key);
}

void Core::ReleaseImport(LinkId link, transport::RemoteRegion region) {
  if (forked()) return;
  progress_->Submit(MakeTask([this, link, region] {
                      if (const auto found = links_.find(link); found != links_.end()) {
                        found->second.transport->Release(link, region);
                      }
                    }),
                    /*now=*/true);
}

void Core::WantPump(const ConnectionState& connection) {
  if (connection->ended() || !connection->wants_pump() || std::exchange(connection->listed, true)) return;
  pumping_.push_back(connection);
}

bool Core::PumpAll() {
  bool moved = false;
  for (size_t i = 0; i < pumping_.size();) {
    Connection::State& connection = *pumping_[i];
    if (!connection.ended()) moved |= connection.Pump();
    if (!connection.ended() && connection.wants_pump()) {
      ++i;
      continue;
    }
    connection.listed = false;
    pumping_[i] = std::move(pumping_.back());
    pumping_.pop_back();
  }
  return moved;
}

bool Core::Step(bool sockets) {
  bool moved = false;
  if (sockets) {
    // Sockets before timers: a peer is not silent whose words only wait to be read.
    moved |= sockets_->Handle();
    moved |= timers_.RunDue(Clock::now());
  }
  moved |= PumpAll();
  bool events = false;
  for (const auto& transport : transports_) {
    const auto progressed = transport->Progress(events_);
    for (size_t i = 0; i < progressed.events; ++i) Dispatch(events_[i]);
    events |= progressed.events > 0;
    moved |= progressed.moved;
  }
  if (events) PumpAll();
  return moved || events;
}

void Core::Reap(transport::Transport& transport) {
  while (const size_t count = transport.Reap(events_)) {
    for (size_t i = 0; i < count; ++i) Dispatch(events_[i]);
  }
}

bool Core::Arm() {
  bool settled = true;
  for (const auto& transport : transports_) settled &= transport->Arm();
  return settled;
}

void Core::Disarm() {
  for (const auto& transport : transports_) transport->Disarm();
}

void Core::Dispatch(const transport::Event& event) {
  std::visit([this](const auto& of_kind) { Handle(of_kind); }, event);
}

template <typename OfLink>
void Core::Handle(const OfLink& event) {
  const auto found = links_.find(event.link);
  if (found == links_.end()) return;
  const auto [transport, connection] = found->second;
  connection->On(event);
  if constexpr (std::is_same_v<OfLink, transport::LinkClosed>) {
    if (!transport->ArmingIsCostly()) --cheap_links_;
    links_.erase(event.link);
    CheckFenced();
  } else {
    WantPump(connection);  // Lost chunks go out again.
  }
}

void Core::Handle(const transport::Deregistered& event) {
  regions_.OnDeregistered(event.region);
  CheckFenced();
}

// --- End -----------------------------------------------------------------------------------------

void Core::Shutdown() {
  if (forked()) return;
  closed_.store(true);
  progress_->Call([this] { CloseAll(); });
  if (!progress_->WaitFor(fenced_, 1, In(settings().lease))) {
    WC_LOG(kWarning,
           "closing the endpoint while a stopped peer may still write: its links did not close within ",
           Seconds(settings().lease), " s; do not reuse its memory before that peer continues or has ended");
  }
  progress_->Call([this] {
    DropTransports();
    // They may keep connections, each of which keeps this endpoint's state.
    options_.on_connection = nullptr;
    options_.on_disconnect = nullptr;
    options_.on_notice = nullptr;
  });
  progress_->Stop();
}

void Core::CloseAll() {
  listener_->Stop();
  handshakes_->Stop();
  for (const auto& connection : connections_->All()) connection->End(ClosedHere("the endpoint"));
  regions_.CloseAll();
  CheckFenced();
}

void Core::CheckFenced() {
  if (closed_.load() && links_.empty() && regions_.open() == 0) fenced_.Set(1);
}

void Core::DropTransports() {
  lingering_->CloseAll();
  sockets_->Forget(transports_key_);
  {
    const std::lock_guard lock(transports_mutex_);
    transports_.clear();
  }
  regions_.SetTransports({});
  // What is left is of peers that are stopped: the transports no longer touch our memory.
  cheap_links_ = 0;
  for (auto& [id, link] : std::exchange(links_, {})) link.connection->Abandon();
  pumping_.clear();
}

}  // namespace weightcast::endpoint
