#include "transport/tcp/tcp_transport.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "base/process.h"
#include "transport/tcp/factory.h"
#include "transport/tcp/keys.h"

namespace weightcast::transport {

Result<std::unique_ptr<Transport>> CreateTcpTransport(const TransportOptions& options) {
  return tcp::TcpTransport::Create(options);
}

namespace tcp {
namespace {

constexpr uint32_t kDefaultLanes = 2;
/// Operations that one lane holds, unless the window asks for more: enough to keep a wire busy with
/// small ones, small enough for a thousand peers.
constexpr uint32_t kDefaultDepth = 128;

}  // namespace

Result<std::unique_ptr<Transport>> TcpTransport::Create(const TransportOptions& options) {
  WC_ASSIGN_OR_RETURN(auto poller, Poller::Create());
  WC_ASSIGN_OR_RETURN(auto timer, TimerFd::Create());
  std::unique_ptr<TcpTransport> made(new TcpTransport(options, std::move(poller), std::move(timer)));
  WC_RETURN_IF_ERROR(made->registry_.commands().Create());
  WC_RETURN_IF_ERROR(
      made->poller_.Add(made->registry_.commands().wake_fd(), EPOLLIN, MakeKey(KeyKind::kWake)));
  WC_RETURN_IF_ERROR(made->poller_.Add(made->timer_.fd(), EPOLLIN, MakeKey(KeyKind::kTimer)));
  WC_RETURN_IF_ERROR(made->acceptor_.Listen(options.settings));
  return std::unique_ptr<Transport>(std::move(made));
}

TcpTransport::TcpTransport(const TransportOptions& options, Poller poller, TimerFd timer)
    : settings_(options.settings),
      boot_id_(BootId()),
      poller_(std::move(poller)),
      timer_(std::move(timer)),
      acceptor_(poller_, MakeKey(KeyKind::kListener), MakeKey(KeyKind::kVisitor), settings_.connect_timeout,
                settings_.lease),
      regions_([this] { RunCommands(); }, [this](LocalRegion& region) { OnRegionEnded(region.id); }) {}

TcpTransport::~TcpTransport() {
  // Its blocks, and the memory of its regions, are used by copies that are under way.
  if (staging_ == nullptr) return;
  for (const auto& [id, link] : links_) {
    for (link->Close(); !link->closed(); std::this_thread::yield()) link->Continue();
  }
}

Limits TcpTransport::LimitsOf(MemoryKind) const { return {.max_length = kMaxLength}; }

// --- Memory

Result<std::string> TcpTransport::Register(const RegionName& name, const DescribedMemory& memory,
                                           Access access) {
  const StagedDevice* device = nullptr;
  if (memory.kind == MemoryKind::kDevice) {
    WC_RETURN_IF_ERROR(RegionNames::Check(name, memory));
    WC_ASSIGN_OR_RETURN(Staging* const staging, MakeStaging());
    WC_ASSIGN_OR_RETURN(device, staging->Use(memory));
  }
  WC_RETURN_IF_ERROR(registry_.Register(name, memory, access, device));
  return std::string();  // The name is all that a peer needs.
}

Result<Staging*> TcpTransport::MakeStaging() {
  const std::lock_guard lock(staging_mutex_);
  if (staging_made_ == nullptr) {
    WC_ASSIGN_OR_RETURN(staging_made_, Staging::Create(settings_));
    WC_RETURN_IF_ERROR(poller_.Add(staging_made_->signal().fd(), EPOLLIN, MakeKey(KeyKind::kDevice)));
  }
  return staging_made_.get();
}

void TcpTransport::Run(LocalRegion& region) {
  if (region.device != nullptr) staging_ = region.device->staging;
  regions_.Add(region);
}

void TcpTransport::OnRegionEnded(uint32_t id) {
  registry_.FreeRegion(id);
  events_.Push(Deregistered{id});
}

// --- Links

Link* TcpTransport::FindByCookie(const Cookie& cookie) const {
  for (const auto& [id, link] : links_) {
    if (link->terms().role == Role::kResponder && link->terms().ours == cookie) return link.get();
  }
  return nullptr;
}

uint16_t TcpTransport::LanesToOffer() const {
  if (settings_.lanes > 0) return static_cast<uint16_t>(std::min<int64_t>(settings_.lanes, kMaxLanes));
  // All sockets of all peers together stay below half of what the process may open.
  rlimit limit{};
  const uint64_t allowed = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / 2 : 512;
  const uint64_t peers = links_.size() + 1;
  return static_cast<uint16_t>(std::clamp<uint64_t>(allowed / peers, 1, kDefaultLanes));
}

Result<std::string> TcpTransport::OpenLink(LinkId link, Role role, Incarnation peer, std::string_view offer,
                                           TimePoint deadline) {
  RunCommands();
  WC_RETURN_IF_ERROR(CheckFree(link));
  LinkTerms terms{.id = link,
                  .role = role,
                  .ours = NewCookie(),
                  .lanes = LanesToOffer(),
                  .depth = std::max(kDefaultDepth, static_cast<uint32_t>(settings_.window)),
                  .deadline = deadline,
                  .lease = settings_.lease,
                  .traffic_class = acceptor_.traffic_class()};
  std::string blob;
  if (role == Role::kInitiator) {
    blob = EncodeOffer(
        {terms.ours, static_cast<uint16_t>(terms.lanes), static_cast<uint16_t>(terms.depth), boot_id_});
  } else {
    WC_ASSIGN_OR_RETURN(const Offer wish, ParseOffer(offer));
    terms.theirs = wish.cookie;
    terms.lanes = std::min<uint32_t>(terms.lanes, wish.lanes);
    terms.depth = std::min<uint32_t>(terms.depth, wish.depth);
    const bool same_host = !boot_id_.empty() && wish.boot_id == boot_id_;
    Answer answer{terms.ours, static_cast<uint16_t>(terms.lanes), static_cast<uint16_t>(terms.depth),
                  acceptor_.chosen(), acceptor_.Addresses(same_host)};
    if (answer.addresses.empty()) {
      return Status(
          Code::kUnavailable,
          "this host has no address to offer for tcp; correct settings bind, interface and advertise");
    }
    blob = EncodeAnswer(answer);
  }
  links_[link] = std::make_unique<Link>(
      Shared{settings_, poller_, regions_, events_, wanting_, moved_, next_step_}, terms);
  registry_.OpenLink(link, peer);
  next_step_ = TimePoint{};
  return blob;
}

Status TcpTransport::Establish(LinkId link, std::string_view answer) {
  Link* found = Find(link);
  if (found == nullptr) return NoSuchLink(link);
  WC_ASSIGN_OR_RETURN(const Answer parsed, ParseAnswer(answer));
  next_step_ = TimePoint{};
  return found->Connect(parsed, Clock::now());
}

void TcpTransport::CloseLink(LinkId link) {
  RunCommands();
  Link* const found = Find(link);
  if (found == nullptr) return events_.Push(LinkClosed{link});
  registry_.CloseLink(link);
  found->Close();
  if (found->closed()) EndLink(link);
}

void TcpTransport::EndLink(LinkId link) {
  links_.erase(link);
  events_.Push(LinkClosed{link});
}

const Cookie* TcpTransport::OnHello(const Greeting& hello) {
  const Link* link = FindByCookie(hello.cookie);
  return link != nullptr && link->Awaits(hello) ? &link->terms().theirs : nullptr;
}

void TcpTransport::OnStart(const Greeting& start, UniqueFd socket) {
  if (Link* link = FindByCookie(start.cookie); link != nullptr) link->OnStart(start, std::move(socket));
}

// --- Progress

Transport::Progressed TcpTransport::Progress(std::span<Event> out) {
  moved_ = false;
  if (events_.size() < out.size()) Poll();
  return {.events = events_.Take(out), .moved = moved_};
}

void TcpTransport::Poll() {
  RunCommands();
  if (next_step_ != TimePoint::max()) StepTimers();
  PollSockets();
  if (wanting_ == 0) return;
  for (auto next = links_.begin(); next != links_.end();) {
    const auto here = next++;
    here->second->Continue();
    if (here->second->closed()) EndLink(here->first);
  }
}

/// Asking the one socket costs half of asking the poller, and saves the second call where there is something.
bool TcpTransport::LookAtLastLane() {
  if (looks_++ % kLooks == 0) return false;
  Link* const link = Find(last_link_);
  Lane* const lane = link == nullptr ? nullptr : link->lane(last_lane_);
  if (lane == nullptr || !lane->LookForMore()) return false;
  link->LookForDeadLanes();
  return true;
}

void TcpTransport::PollSockets() {
  if (LookAtLastLane()) return;
  std::array<epoll_event, 64> ready;
  const int count = poller_.Wait(ready, Duration::zero());
  for (int i = 0; i < count; ++i) OnReady(ready[static_cast<size_t>(i)].data.u64);
}

void TcpTransport::OnReady(uint64_t key) {
  switch (KindOf(key)) {
    case KeyKind::kWake:  // Commands have been run; Disarm drains.
    case KeyKind::kDevice:
    case KeyKind::kTimer:
      return;
    case KeyKind::kListener:
      next_step_ = TimePoint{};
      return acceptor_.OnConnect(Clock::now(), *this);
    case KeyKind::kVisitor:
      return acceptor_.OnReady(NumberOf(key), *this);
    case KeyKind::kConnect:
      if (Link* link = Find(LinkOf(key)); link != nullptr) {
        next_step_ = TimePoint{};
        link->OnConnectReady(LaneOf(key), AttemptOf(key), Clock::now());
      }
      return;
    case KeyKind::kLane:
      if (Link* link = Find(LinkOf(key)); link != nullptr) {
        last_link_ = LinkOf(key);
        last_lane_ = LaneOf(key);
        if (Lane* lane = link->lane(LaneOf(key)); lane != nullptr) lane->Receive();
        link->LookForDeadLanes();
      }
      return;
  }
}

void TcpTransport::StepTimers() {
  const TimePoint now = Clock::now();
  if (now < next_step_) return;
  acceptor_.Step(now);
  for (const auto& [id, link] : links_) link->Step(now);
  next_step_ = NextStep();
}

TimePoint TcpTransport::NextStep() const {
  TimePoint next = acceptor_.NextStep();
  for (const auto& [id, link] : links_) next = std::min(next, link->NextStep());
  return next;
}

// --- Sleeping

bool TcpTransport::Arm() {
  if (!events_.empty() || !ArmStaging()) return false;
  for (const auto& [id, link] : links_) {
    if (wanting_ == 0) break;
    for (const auto& lane : link->lanes()) {
      if (!lane->Arm()) return false;
    }
  }
  return timer_.Set(NextStep()) && registry_.commands().Arm();
}

/// First: what is over from here on rings.
bool TcpTransport::ArmStaging() {
  if (staging_ == nullptr) return true;
  staging_->signal().Arm();
  return std::ranges::none_of(links_, [](const auto& each) { return each.second->HasNews(); });
}

void TcpTransport::Disarm() {
  registry_.commands().Disarm();
  if (staging_ != nullptr) staging_->signal().Disarm();
  looks_ = 0;  // Somebody may have been woken for any of them.
}

}  // namespace tcp
}  // namespace weightcast::transport
