#include "endpoint/links.h"

#include <mutex>
#include <type_traits>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"

namespace weightcast::endpoint {

using transport::LinkId;

Status Links::Start(Sockets& sockets, Poller poller, std::vector<Created> transports) {
  sockets_ = &sockets;
  poller_ = std::move(poller);
  transports_ = std::move(transports);
  Registrations::Transports registered;
  for (const auto& [name, transport] : transports_) registered.emplace_back(name, transport.get());
  regions_.SetTransports(std::move(registered));
  WC_ASSIGN_OR_RETURN(poller_key_, sockets.Watch(poller_.fd(), EPOLLIN, {}));
  return Status::Ok();
}

void Links::DropTransports() {
  sockets_->Forget(poller_key_);
  {
    const std::lock_guard lock(mutex_);
    transports_.clear();
  }
  regions_.SetTransports({});
  cheap_links_ = 0;
  // What is not fenced never will be, but our own memory is no longer used.
  for (auto& [id, link] : std::exchange(links_, {})) link.connection->sender().OnLinkClosed();
  pumping_.clear();
}

Result<transport::RemoteRegion> Links::Import(transport::Transport& transport, LinkId link,
                                              const RegionName& name, uint64_t length, std::string_view key) {
  const std::shared_lock lock(mutex_);
  if (transports_.empty()) return ClosedHere("the endpoint");
  return transport.Import(link, name, length, key);
}

void Links::Release(LinkId link, transport::RemoteRegion region) {
  if (const auto found = links_.find(link); found != links_.end()) {
    found->second.transport->Release(link, region);
  }
}

std::vector<NamedTransport> Links::Allowed() const {
  std::vector<NamedTransport> all;
  for (const auto& [name, transport] : transports_) {
    all.push_back({name, transport.get(), regions_.WhyLeftOut(name)});
  }
  return all;
}

LinkId Links::Add(transport::Transport* transport, ConnectionState connection) {
  const LinkId id{++last_link_};
  links_.emplace(id, Link{transport, std::move(connection)});
  if (!transport->ArmingIsCostly()) ++cheap_links_;
  return id;
}

void Links::Close(LinkId link) {
  if (const auto found = links_.find(link); found != links_.end()) found->second.transport->CloseLink(link);
}

void Links::EndUsing(const RegisteredMemory& registration) {
  for (const auto& [id, link] : links_) link.connection->sender().EndUsing(registration);
}

std::string Links::Writers() const {
  std::string all;
  for (const auto& [id, link] : links_) {
    const std::string peer = StrCat(link.connection->view().peer().label, ", ");
    if (link.connection->ended() && all.find(peer) == std::string::npos) all += peer;
  }
  return all.empty() ? "a peer that is stopped or unreachable" : StrCat(all, "stopped or unreachable,");
}

// --- Progress ------------------------------------------------------------------------------------

void Links::Begin(Connection::State& connection, const TransferRef& transfer, bool visit) {
  Sender& sender = connection.sender();
  sender.Add(transfer);
  if (sender.Pump() && visit) {
    while (const size_t count = connection.link().transport->Reap(events_)) Dispatch(count);
  }
  sender.WatchDeadline(*transfer);
  if (sender.wants_pump()) WantPump(connection.shared_from_this());
}

void Links::WantPump(const ConnectionState& connection) {
  if (connection->ended() || !connection->sender().wants_pump() || std::exchange(connection->listed, true))
    return;
  pumping_.push_back(connection);
}

bool Links::PumpAll() {
  bool moved = false;
  for (size_t i = 0; i < pumping_.size();) {
    Connection::State& connection = *pumping_[i];
    if (!connection.ended()) moved |= connection.sender().Pump();
    if (!connection.ended() && connection.sender().wants_pump()) {
      ++i;
      continue;
    }
    connection.listed = false;
    pumping_[i] = std::move(pumping_.back());
    pumping_.pop_back();
  }
  return moved;
}

bool Links::Step(bool sockets) {
  bool moved = false;
  if (sockets) {
    // Sockets before timers: a peer is not silent whose words only wait to be read.
    moved |= sockets_->Handle();
    moved |= timers_.RunDue(Clock::now());
  }
  moved |= PumpAll();
  bool events = false;
  for (const auto& [name, transport] : transports_) {
    const auto progressed = transport->Progress(events_);
    Dispatch(progressed.events);
    events |= progressed.events > 0;
    moved |= progressed.moved;
  }
  if (events) PumpAll();
  return moved || events;
}

bool Links::Arm() {
  bool settled = true;
  for (const auto& [name, transport] : transports_) settled &= transport->Arm();
  return settled;
}

void Links::Disarm() {
  for (const auto& [name, transport] : transports_) transport->Disarm();
}

void Links::Dispatch(size_t count) {
  for (size_t i = 0; i < count; ++i) std::visit([this](const auto& of_kind) { Handle(of_kind); }, events_[i]);
}

template <typename OfLink>
void Links::Handle(const OfLink& event) {
  const auto found = links_.find(event.link);
  if (found == links_.end()) return;
  const auto [transport, connection] = found->second;
  connection->On(event);
  if constexpr (std::is_same_v<OfLink, transport::LinkClosed>) {
    if (!transport->ArmingIsCostly()) --cheap_links_;
    links_.erase(event.link);
    on_gone_();
  } else {
    WantPump(connection);  // Lost chunks go out again.
  }
}

void Links::Handle(const transport::Deregistered& event) {
  regions_.OnDeregistered(event.region);
  on_gone_();
}

}  // namespace weightcast::endpoint
