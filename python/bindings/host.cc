#include "host.h"

#include <algorithm>
#include <utility>

namespace weightcast::bindings {

TimePoint DeadlineIn(std::optional<double> seconds) { return seconds ? In(*seconds) : kNever; }

// --- Events --------------------------------------------------------------------------------------

void Events::OnConnection(Connection connection) {
  const std::lock_guard lock(mutex_);
  if (accepted_.size() >= crowd_) {
    std::erase_if(accepted_, [](const Connection& one) { return !one.status().ok(); });
    crowd_ = std::max(kCrowd, 2 * accepted_.size());
  }
  accepted_.push_back(std::move(connection));
  changed_.notify_one();
  Ring(kAccept);
}

void Events::OnPeer(Incarnation peer) {
  const std::lock_guard lock(mutex_);
  Ring(peer);
}

void Events::OnClose() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
  while (!bells_.empty()) Ring(bells_.begin()->first);
}

bool Events::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

std::optional<Connection> Events::Take(TimePoint until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until, [&] { return closed_ || !accepted_.empty(); });
  if (closed_ || accepted_.empty()) return std::nullopt;
  Connection oldest = std::move(accepted_.front());
  accepted_.pop_front();
  return oldest;
}

void Events::Watch(Incarnation what, Bell bell) {
  const std::lock_guard lock(mutex_);
  if (closed_) return bell.Ring();
  bells_[what].push_back(std::move(bell));
}

void Events::Unwatch(Incarnation what, const Bell& bell) {
  const std::lock_guard lock(mutex_);
  const auto found = bells_.find(what);
  if (found == bells_.end()) return;
  std::erase(found->second, bell);
  if (found->second.empty()) bells_.erase(found);
}

void Events::Ring(Incarnation what) {
  const auto found = bells_.find(what);
  if (found == bells_.end()) return;
  for (const Bell& bell : found->second) bell.Ring();
  bells_.erase(found);
}

// --- Host ----------------------------------------------------------------------------------------

Host::Host(Settings settings, std::shared_ptr<Events> events, std::unique_ptr<Endpoint> endpoint)
    : settings_(std::move(settings)),
      events_(std::move(events)),
      keeper_(std::make_shared<Keeper>(::getpid())),
      endpoint_(std::move(endpoint)) {}

Result<std::shared_ptr<Host>> Host::Create(EndpointOptions options) {
  const auto events = std::make_shared<Events>();
  options.on_connection = [events](Connection connection) { events->OnConnection(std::move(connection)); };
  options.on_disconnect = [events](const Identity& peer, const Status&) { events->OnPeer(peer.incarnation); };
  options.on_notice = [events](const Connection& connection) {
    events->OnPeer(connection.peer().incarnation);
  };
  options.interrupted = [events] { return events->closed() || Interrupted(); };
  Settings settings = options.settings;
  WC_ASSIGN_OR_RETURN(auto endpoint, Endpoint::Create(std::move(options)));
  return std::shared_ptr<Host>(new Host(std::move(settings), events, std::move(endpoint)));
}

Host::~Host() {
  if (keeper_->forked()) {
    (void)endpoint_.release();  // Its thread does not exist here.
    return;
  }
  {
    const GilRelease release;
    Close();
  }
  keeper_->Sweep();
}

void Host::Check() const {
  if (!keeper_->forked()) return;
  throw StatusError(
      {Code::kInternal,
       "an Endpoint cannot be used in a forked child; make a new one there, or start processes by spawn"});
}

void Host::Close() {
  std::unique_ptr<Endpoint> ending;
  std::unique_lock lock(mutex_);
  closing_ = true;
  events_->OnClose();
  unused_.wait(lock, [&] { return uses_ == 0; });
  ending = std::move(endpoint_);
  lock.unlock();
  ending.reset();
}

Host::Use::Use(Host& host) : host_(host) {
  host.Check();
  const std::lock_guard lock(host.mutex_);
  if (host.closing_) throw StatusError(EndpointClosed());
  ++host.uses_;
}

Host::Use::~Use() {
  const std::lock_guard lock(host_.mutex_);
  if (--host_.uses_ == 0) host_.unused_.notify_all();
}

}  // namespace weightcast::bindings
