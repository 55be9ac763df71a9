#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "transport/shm/shm_transport.h"

/// Turning the wheel: polling descriptors, turns of the links, fences, sleep.
namespace weightcast::transport::shm {
namespace {

/// Descriptors tell of rare things while everybody spins; looking costs a system call.
constexpr uint32_t kTurnsPerPoll = 64;
/// And callers come and go quickly: whoever slept until a descriptor was ready, and does not look at once,
/// finds it ready again.
constexpr Duration kPollInterval = std::chrono::microseconds(100);
constexpr uint32_t kOperationsPerTurn = 64;

}  // namespace

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
    uint64_t expired = 0;
    [[maybe_unused]] const ssize_t ignored = read(timer_.get(), &expired, sizeof expired);
    timer_at_.reset();
  } else if (kind == PollKind::kListener) {
    acceptor_.Accept(context_.poller, now);
  } else if (kind == PollKind::kStranger) {
    if (auto guest = acceptor_.Hear(context_.poller, number)) Welcome(std::move(*guest));
  } else if (kind == PollKind::kDeparted) {
    std::erase_if(departed_, [this](DepartedPeer& peer) { return peer.Look(context_.poller); });
  } else if (kind == PollKind::kDevice) {
    return;  // The next turn looks; Disarm clears it.
  } else if (Link* const link = Find(LinkId{number}); link != nullptr) {
    kind == PollKind::kChannel ? link->OnChannel() : link->OnProcess();
  }
}

void ShmTransport::Welcome(Acceptor::Guest guest) {
  for (Link* link : order_) {
    if (link->greeting().awaits_guest() && link->greeting().cookie() == guest.hello.cookie) {
      return link->Adopt(std::move(guest.channel), guest.message);
    }
  }
}

bool ShmTransport::Turn() {
  bool any = TakeChanges();
  if (DeviceSide* const devices = context_.devices(); devices != nullptr) any |= devices->reports()->Take();
  if (!order_.empty()) {
    first_ = (first_ + 1) % order_.size();
    Budget budget{.bytes = kPieceBytes};
    for (size_t i = 0; i < order_.size(); ++i) {
      budget.operations = kOperationsPerTurn;
      any |= order_[(first_ + i) % order_.size()]->Turn(budget);
    }
    posts_.bytes = kAtOnceBytes - (kPieceBytes - budget.bytes);
  }
  any |= SettleFences();
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
    RegionFence fence{.region = region, .waits = {}};
    for (Link* link : order_) {
      fence.waits.emplace_back(link, link->fences().Make(region));
      link->devices().offers().Drop(region);
    }
    region_fences_.push_back(std::move(fence));
  }
  return any;
}

bool ShmTransport::SettleFences() {
  bool any = false;
  for (Link* link : order_) {
    if (link->fences().has_revokes()) any |= link->fences().Settle();
  }
  const auto over = [](const auto& wait) { return wait.first->fences().Over(wait.second); };
  const auto settled = [&](RegionFence& fence) {
    std::erase_if(fence.waits, over);
    if (!fence.waits.empty() || Held(fence.region)) return false;
    context_.regions.Forget(fence.region);
    context_.events.Push(Deregistered{.region = fence.region});
    return true;
  };
  return std::erase_if(region_fences_, settled) > 0 || any;
}

/// Whether a peer may still have it mapped for its devices.
bool ShmTransport::Held(uint32_t region) const {
  return std::ranges::any_of(order_,
                             [region](Link* link) { return link->devices().offers().Holds(region); }) ||
         std::ranges::any_of(departed_, [region](const DepartedPeer& peer) { return peer.Holds(region); });
}

bool ShmTransport::RemoveClosed() {
  const auto closed = [this](Link* link) {
    if (!link->closed()) return false;
    for (RegionFence& fence : region_fences_) {
      std::erase_if(fence.waits, [link](const auto& wait) { return wait.first == link; });
    }
    link->fences().Settle();
    if (auto departed = link->devices().Depart(link->fences().gone()); departed)
      departed_.push_back(std::move(*departed));
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
  const bool fences = has_fences();
  for (Link* link : order_) link->Arm(fences);
  // Whatever came before the flags were up is found by looking once more.
  bool work = Turn() || !context_.events.empty() || poll_now_;
  for (Link* link : order_) work |= link->devices().waits();
  if (work) {
    Disarm();
    return false;
  }
  SetTimer();
  return true;
}

void ShmTransport::Disarm() {
  asleep_.store(false, std::memory_order_seq_cst);
  if (DeviceSide* const devices = context_.devices(); devices != nullptr) devices->signal().Disarm();
  for (Link* link : order_) link->Disarm();
  if (Clock::now() - polled_ >= kPollInterval) poll_now_ = true;
}

void ShmTransport::SetTimer() {
  std::optional<TimePoint> due = acceptor_.due();
  for (const Link* link : order_) {
    if (const auto of_link = link->due(); of_link && (!due || *of_link < *due)) due = of_link;
  }
  if (due == timer_at_) return;
  timer_at_ = due;
  itimerspec when{};
  if (due) {
    const int64_t at = std::max<int64_t>(due->time_since_epoch().count(), 1);
    when.it_value = {.tv_sec = at / 1'000'000'000, .tv_nsec = at % 1'000'000'000};
  }
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

}  // namespace weightcast::transport::shm
