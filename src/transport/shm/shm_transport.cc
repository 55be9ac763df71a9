#include "transport/shm/shm_transport.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "base/advice.h"
#include "base/process.h"
#include "base/strings.h"
#include "transport/other_release.h"
#include "transport/shm/cross_copy.h"
#include "transport/shm/factory.h"

namespace weightcast::transport {

Result<std::unique_ptr<Transport>> CreateShmTransport(const TransportOptions& options) {
  return shm::ShmTransport::Create(options);
}

namespace shm {
namespace {

/// Descriptors tell of rare things while everybody spins; looking costs a system call.
constexpr uint32_t kTurnsPerPoll = 64;
/// And callers come and go quickly: one that slept until a descriptor was ready, and does not look at once,
/// finds it ready again.
constexpr Duration kPollInterval = std::chrono::microseconds(100);
constexpr uint32_t kOperationsPerTurn = 64;

}  // namespace

Result<std::unique_ptr<Transport>> ShmTransport::Create(const TransportOptions& options, CrossCopies copies,
                                                        Ptracer& ptracer) {
  WC_ASSIGN_OR_RETURN(auto poller, Poller::Create());
  WC_ASSIGN_OR_RETURN(auto fence, CreateShared(sizeof(FencePage), /*read_only_for_peers=*/true));
  WC_ASSIGN_OR_RETURN(auto wake, WakeFd::Create());
  WC_ASSIGN_OR_RETURN(auto timer, TimerFd::Create());
  WC_RETURN_IF_ERROR(poller.Add(wake.fd(), EPOLLIN, PollKey(PollKind::kWake, 0)));
  WC_RETURN_IF_ERROR(poller.Add(timer.fd(), EPOLLIN, PollKey(PollKind::kTimer, 0)));
  WC_ASSIGN_OR_RETURN(auto acceptor, Acceptor::Create(poller));
  return std::unique_ptr<Transport>(new ShmTransport(options, copies, ptracer, std::move(poller),
                                                     std::move(fence), std::move(wake), std::move(timer),
                                                     std::move(acceptor)));
}

ShmTransport::ShmTransport(const TransportOptions& options, CrossCopies copies, Ptracer& ptracer,
                           Poller poller, SharedPages fence, WakeFd wake, TimerFd timer, Acceptor acceptor)
    : process_(getpid()),
      settings_(options.settings),
      context_(options.self, copies, ptracer, Ptracer::PolicyOf(settings_.ptracer), std::move(poller),
               std::move(fence), device::CopyOptions(settings_)),
      wake_(std::move(wake)),
      timer_(std::move(timer)),
      acceptor_(std::move(acceptor)),
      boot_id_(BootId()) {}

ShmTransport::~ShmTransport() {
  if (getpid() != process_) {
    // A child of a fork: the links and what watches them are the parent's.
    for (auto& [id, link] : links_) (void)link.release();
    return;
  }
  for (Link* link : order_) link->Close();
  // Memory is freed after this; a copy takes microseconds. A stopped peer is the caller's to have waited for.
  // Where devices copy, or have a peer's memory mapped, a busy machine may need longer to end that.
  const TimePoint limit = Clock::now() + (context_.devices() == nullptr ? std::chrono::milliseconds(100)
                                                                        : std::chrono::seconds(3));
  const auto all_closed = [this] {
    return std::all_of(order_.begin(), order_.end(), [](Link* link) {
      return link->closed() &&
             !link->devices().offers().Holds(kTrialRegion);  // The cell is ours to wait for.
    });
  };
  while ((!all_closed() || region_fences_.has_departed()) && Clock::now() < limit) {
    Poll();
    Turn();
  }
}

Limits ShmTransport::LimitsOf(MemoryKind kind) const {
  constexpr uint64_t kAny = std::numeric_limits<uint64_t>::max();
  // Devices copy, and the target's processor has it done: nothing much is moved inside Post.
  if (kind == MemoryKind::kDevice) return {.max_length = kLongestPull, .at_once = kAny};
  return {.max_length = kAny / 2, .at_once = kAtOnceBytes};
}

Result<std::string> ShmTransport::Register(const RegionName& name, const DescribedMemory& memory,
                                           Access access) {
  if (memory.kind == MemoryKind::kHost) return context_.regions.Add(name, memory, access);
  WC_ASSIGN_OR_RETURN(DeviceSide* const devices, context_.MakeDevices(settings_));
  WC_ASSIGN_OR_RETURN(auto region, devices->Describe(memory));
  return context_.regions.Add(name, memory, access, std::move(region));
}

void ShmTransport::Deregister(uint32_t region) {
  if (context_.regions.Remove(region)) WakeSleeper();
}

Result<RemoteRegion> ShmTransport::Import(LinkId link, const RegionName& name, uint64_t length,
                                          std::string_view key) {
  auto imported = context_.peer_regions.Add(link, name, length, key);
  if (imported.ok()) WakeSleeper();
  return imported;
}

void ShmTransport::Release(LinkId link, RemoteRegion region) {
  TakeChanges();
  context_.peer_regions.Erase(link, region);
}

Result<std::string> ShmTransport::OpenLink(LinkId link, Role role, Incarnation peer, std::string_view offer,
                                           TimePoint deadline) {
  if (static_cast<uint32_t>(link) == 0 || Find(link) != nullptr) {
    return Error(Code::kInvalidArgument, "shm: link id ", static_cast<uint32_t>(link), " is 0 or in use",
                 kReportBug);
  }
  Invitation invitation;
  if (role == Role::kResponder) {
    WC_ASSIGN_OR_RETURN(invitation, DecodeInvitation(offer));
    if (invitation.boot_id != boot_id_)
      return Status(Code::kUnavailable,
                    "the peer is on another host, and shared memory is for one host; allow tcp or verbs in "
                    "setting transport");
  }
  WC_ASSIGN_OR_RETURN(auto made, Link::Create(context_, link, peer, deadline));
  made->greeting().set_peer_cookie(invitation.cookie);
  const Invitation own{.boot_id = boot_id_,
                       .name = role == Role::kResponder ? acceptor_.name() : std::string(),
                       .cookie = made->greeting().cookie()};
  order_.push_back(made.get());
  links_.emplace(static_cast<uint32_t>(link), std::move(made));
  return Encode(own);
}

Status ShmTransport::Establish(LinkId link, std::string_view answer) {
  Link* const found = Find(link);
  if (found == nullptr)
    return Error(Code::kInvalidArgument, "shm: there is no link ", static_cast<uint32_t>(link), kReportBug);
  WC_ASSIGN_OR_RETURN(const Invitation invitation, DecodeInvitation(answer));
  if (invitation.name.empty()) return OtherRelease("the peer's shm answer names no listener");
  found->Connect(invitation);
  return Status::Ok();
}

void ShmTransport::CloseLink(LinkId link) {
  Link* const found = Find(link);
  if (found != nullptr && found->state() != Link::State::kClosing) found->Close();
}

std::string ShmTransport::Describe(LinkId link) const {
  const Link* const found = Find(link);
  return found == nullptr ? "shm: no such link" : found->Describe();
}

Status ShmTransport::OpenGrant(LinkId link, const GrantName& grant, GrantReach ranges) {
  Link* const found = Find(link);
  if (found == nullptr)
    return Error(Code::kInvalidArgument, "shm: there is no link ", static_cast<uint32_t>(link), kReportBug);
  return found->fences().OpenGrant(grant, std::move(ranges));
}

void ShmTransport::Revoke(LinkId link, const GrantName& grant) {
  Link* const found = Find(link);
  if (found == nullptr) {
    context_.events.Push(Revoked{.link = link, .grant = grant});
  } else {
    found->fences().Revoke(grant);
  }
}

size_t ShmTransport::Post(LinkId link, uint32_t lane, std::span<const Op> ops) {
  if (context_.peer_regions.pending()) TakeChanges();
  Link* const found = Find(link);
  return found == nullptr || lane != 0 ? 0 : found->Post(ops, posts_);
}

Link* ShmTransport::Find(LinkId link) const {
  const auto found = links_.find(static_cast<uint32_t>(link));
  return found == links_.end() ? nullptr : found->second.get();
}

void ShmTransport::WakeSleeper() {
  if (asleep_.load(std::memory_order_seq_cst) && asleep_.exchange(false)) wake_.Wake();
}

Transport::Progressed ShmTransport::Progress(std::span<Event> out) {
  const bool opening = std::any_of(order_.begin(), order_.end(), [](const Link* link) {
    return link->state() == Link::State::kOpening || link->state() == Link::State::kHungUp;
  });
  if (poll_now_ || opening || ++turns_ % kTurnsPerPoll == 0) Poll();
  const bool moved = Turn();
  return {.events = context_.events.Take(out), .moved = moved};
}

void ShmTransport::Poll() {
  poll_now_ = false;
  std::array<epoll_event, 64> events;
  const int count = context_.poller.Wait(events, Duration(0));
  const TimePoint now = polled_ = Clock::now();
  for (int i = 0; i < count; ++i) Dispatch(events[i].data.u64, now);
  acceptor_.Expire(context_.poller, now);
  for (Link* link : order_) {
    if (const auto due = link->due(); due && *due <= now) link->OnTime(now);
  }
}

void ShmTransport::Dispatch(uint64_t key, TimePoint now) {
  const auto number = static_cast<uint32_t>(key);
  const auto kind = static_cast<PollKind>(key >> 32);
  if (kind == PollKind::kWake) {
    wake_.Drain();
  } else if (kind == PollKind::kTimer) {
    return;  // Arm sets it again.
  } else if (kind == PollKind::kListener) {
    acceptor_.Accept(context_.poller, now);
  } else if (kind == PollKind::kStranger) {
    auto guest = acceptor_.ReadHello(context_.poller, number);
    const auto host = std::ranges::find_if(order_, [&](Link* link) {
      return guest && link->greeting().awaits_guest() && link->greeting().cookie() == guest->hello.cookie;
    });
    if (host != order_.end()) (*host)->Adopt(std::move(guest->channel), guest->message);
  } else if (kind == PollKind::kDeparted) {
    region_fences_.HearDeparted();
  } else if (kind == PollKind::kDevice) {
    return;  // The next turn looks; Disarm clears it.
  } else if (Link* const link = Find(LinkId{number}); link != nullptr) {
    kind == PollKind::kChannel ? link->OnChannel() : link->OnProcess();
  }
}

bool ShmTransport::Turn() {
  bool any = TakeChanges();
  if (DeviceSide* const devices = context_.devices(); devices != nullptr) any |= devices->reports()->Take();
  if (!order_.empty()) {
    first_ = (first_ + 1) % order_.size();
    Budget budget{.bytes = kPieceBytes};
    context_.senders = std::ranges::count_if(order_, [](const Link* link) { return link->sends(); });
    context_.fence_pages.mapping.As<FencePage>()->writers.store(
        std::ranges::count_if(order_, [](Link* link) { return link->fences().granted(); }),
        std::memory_order_relaxed);
    for (size_t i = 0; i < order_.size(); ++i) {
      budget.operations = kOperationsPerTurn;
      any |= order_[(first_ + i) % order_.size()]->Turn(budget);
    }
    posts_.bytes = kAtOnceBytes - (kPieceBytes - budget.bytes);
  }
  for (Link* link : order_) {
    if (link->fences().has_revokes()) any |= link->fences().Settle();
  }
  any |= region_fences_.Settle(order_);
  return RemoveClosed() || any;
}

bool ShmTransport::TakeChanges() {
  bool any = false;
  if (context_.peer_regions.pending()) {
    any = true;
    for (PeerRegion* region : context_.peer_regions.TakeAdded()) {
      if (Link* const link = Find(region->link); link != nullptr) {
        link->regions().Import(*region);
      } else {
        context_.peer_regions.Erase(region->link, region->id);
      }
    }
  }
  for (const uint32_t region : context_.regions.TakeRemoved()) {
    any = true;
    region_fences_.Add(region, order_);
  }
  return any;
}

bool ShmTransport::RemoveClosed() {
  const auto closed = [this](Link* link) {
    if (!link->closed()) return false;
    link->fences().Settle();
    region_fences_.OnClosed(*link);
    const LinkId id = link->id();
    context_.peer_regions.EraseLink(id);
    context_.events.Push(LinkClosed{.link = id});
    links_.erase(static_cast<uint32_t>(id));
    return true;
  };
  return std::erase_if(order_, closed) > 0;
}

bool ShmTransport::Arm() {
  asleep_.store(true, std::memory_order_seq_cst);
  if (DeviceSide* const devices = context_.devices(); devices != nullptr) devices->signal().Arm();
  const bool fences = !region_fences_.empty() || std::ranges::any_of(order_, [](Link* link) {
    return link->fences().has_revokes() || link->state() == Link::State::kClosing;
  });
  for (Link* link : order_) link->Arm(fences);
  // Whatever came before the flags were up is found by looking once more.
  bool work = Turn() || !context_.events.empty() || poll_now_;
  for (Link* link : order_) work |= link->devices().waits();
  TimePoint due = acceptor_.due().value_or(TimePoint::max());
  for (const Link* link : order_) due = std::min(due, link->due().value_or(TimePoint::max()));
  if (!work && timer_.Set(due)) return true;
  Disarm();
  poll_now_ |= !work;  // It is time for something, which only a poll looks at.
  return false;
}

void ShmTransport::Disarm() {
  asleep_.store(false, std::memory_order_seq_cst);
  if (DeviceSide* const devices = context_.devices(); devices != nullptr) devices->signal().Disarm();
  for (Link* link : order_) link->Disarm();
  if (Clock::now() - polled_ >= kPollInterval) poll_now_ = true;
}

}  // namespace shm
}  // namespace weightcast::transport
