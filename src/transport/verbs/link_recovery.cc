// Queue pairs that fail and begin again.
#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"
#include "transport/verbs/link.h"

namespace weightcast::transport::verbs {

Result<std::unique_ptr<Queue>> Link::MakeQueue(uint32_t queue) {
  return Queue::Create(NicOf(recoveries_[queue]), IsControl(queue) ? Control::kDepth : Lane::kRequests);
}

void Link::BeginQueue(uint32_t queue, std::unique_ptr<Queue> made, bool probe) {
  Recovery& recovery = recoveries_[queue];
  recovery.stage = Stage::kProbing;
  recovery.peer_over = false;
  recovery.backoff.OnBegun(Clock::now());
  std::optional<Probe> hello;
  if (probe)
    hello = {.cookie = peer_cookie_, .queue = static_cast<uint16_t>(queue), .generation = recovery.number};
  if (IsControl(queue)) {
    control_->Begin(queue, std::move(made), hello);
  } else {
    LaneOf(queue).Begin(std::move(made), hello);
  }
}

/// Initiator: our probe has arrived.
void Link::OnQueueProven(uint32_t queue) {
  if (recoveries_[queue].stage != Stage::kProbing) return;
  OpenQueue(queue);
  CheckProbes();
}

/// Responder: the initiator's has.
void Link::OnQueueProbed(uint32_t queue, const Probe& probe) {
  const Recovery& recovery = recoveries_[queue];
  if (terms_.role != Role::kResponder || probe.cookie != own_cookie_ || probe.queue != queue ||
      probe.generation != recovery.number) {
    return OnQueueBroken(
        queue, {Code::kProtocol, StrCat("the peer sent the probe of another queue pair", kSameRelease)});
  }
  if (recovery.stage == Stage::kProbing) OpenQueue(queue);
}

void Link::OpenQueue(uint32_t queue) {
  recoveries_[queue].stage = Stage::kUp;
  if (IsControl(queue)) return control_->Open(queue);
  if (state_ != State::kReady) return;  // All at once, then.
  LaneOf(queue).Open();
  shared_.events.Push(LaneUp{terms_.id, queue - rails()});
}

void Link::OnQueueBroken(uint32_t queue, Status reason) {
  broken_.push_back({.queue = queue, .generation = recoveries_[queue].number, .reason = std::move(reason)});
  Touch();
}

void Link::EndBroken() {
  while (!broken_.empty() || going_down_) {
    for (const Broken& broken : std::exchange(broken_, {})) {
      if (recoveries_[broken.queue].number == broken.generation) EndQueue(broken.queue, broken.reason);
    }
    CheckProbes();
    if (going_down_) TakeDown(*std::exchange(going_down_, std::nullopt));
  }
}

void Link::DestroyQueue(uint32_t queue, const Status& reason) {
  recoveries_[queue].waiting.reset();
  if (IsControl(queue)) {
    control_->Break(queue);
  } else {
    LaneOf(queue).Break(reason);
  }
}

/// Ours is destroyed, and the peer is told over what is left.
void Link::EndQueue(uint32_t queue, const Status& reason) {
  Recovery& recovery = recoveries_[queue];
  if (closed_ || state_ == State::kDown) return DestroyQueue(queue, reason);
  if (recovery.stage == Stage::kEnding || recovery.stage == Stage::kOver) return;
  last_reason_ = WithSameRelease(reason).message();
  recovery.stage = Stage::kEnding;
  WC_LOG(kInfo, "verbs: queue pair ", queue, " over ", NicOf(recovery).name(), " ends: ", reason.message());
  destroying_ = queue;
  DestroyQueue(queue, reason);
  destroying_.reset();
  if (state_ != State::kProbing && control_->lost()) {
    return GoDown(
        {reason.code(), StrCat("no RDMA path to the peer is left, and the last one ended: ", last_reason_)});
  }
  Say(QueueOver{static_cast<uint16_t>(queue), recovery.number});
  control_->TestOthers();
  if (recovery.peer_over) SettleQueue(queue);
}

/// Both ends are destroyed: nothing of this generation can land any more, here or there.
void Link::SettleQueue(uint32_t queue) {
  Recovery& recovery = recoveries_[queue];
  recovery.stage = Stage::kOver;
  if (!IsControl(queue)) LaneOf(queue).Settle(Code::kUnavailable, /*peer_alive=*/true);
  Touch();  // A barrier may have waited for it.
  if (terms_.role != Role::kInitiator) return;
  recovery.backoff.OnOver(Clock::now());
  shared_.next_step = TimePoint{};
}

void Link::OfferNext(uint32_t queue) {
  Recovery& recovery = recoveries_[queue];
  shared_.next_step = TimePoint{};
  if (!NicOf(recovery).up() || !control_->any_open()) return recovery.backoff.OnFailed(Clock::now());
  auto made = MakeQueue(queue);
  if (!made.ok()) {
    WC_LOG(kInfo, "verbs: ", made.status().message());
    return recovery.backoff.OnFailed(Clock::now());
  }
  ++recovery.number;
  recovery.stage = Stage::kOffered;
  recovery.peer_over = false;
  recovery.backoff.OnBegun(Clock::now());
  recovery.waiting = std::move(*made);
  const QueueName name = recovery.waiting->name();
  TellAddress(recovery.rail);
  Say(QueueOffer{static_cast<uint16_t>(queue), recovery.number, name.number, name.psn});
}

void Link::TellAddress(uint32_t rail) {
  const Address& now = nics_[rails_[rail].nic]->address();
  if (now == rails_[rail].own) return;
  rails_[rail].own = now;
  Say(NewAddress{.rail = static_cast<uint8_t>(rail),
                 .facts = static_cast<uint8_t>(now.mtu | (now.grh ? kAddressGrh : 0)),
                 .reads = now.reads,
                 .lid = now.lid,
                 .pkey = now.pkey,
                 .gid = now.gid});
}

void Link::OnNewAddress(const NewAddress& message) {
  if (message.rail >= rails_.size())
    return GoDown(
        {Code::kProtocol,
         StrCat("the peer sent a new address for a NIC that the link does not have", kSameRelease)});
  Address& peer = rails_[message.rail].peer;
  peer.mtu = message.facts & ~kAddressGrh;
  peer.grh = (message.facts & kAddressGrh) != 0;
  peer.reads = message.reads;
  peer.lid = message.lid;
  peer.pkey = message.pkey;
  peer.gid = message.gid;
}

void Link::OnQueueOver(const QueueOver& message) {
  if (message.queue >= recoveries_.size())
    return GoDown(
        {Code::kProtocol, StrCat("the peer ended a queue pair that the link does not have", kSameRelease)});
  Recovery& recovery = recoveries_[message.queue];
  if (message.generation != recovery.number) return;  // Of a generation that is over.
  recovery.peer_over = true;
  if (destroying_ == message.queue) return;
  if (recovery.stage == Stage::kEnding) return SettleQueue(message.queue);
  OnQueueBroken(message.queue, {Code::kUnavailable, "the peer has given this queue pair up; see its log"});
}

void Link::OnQueueOffer(const QueueOffer& message) {
  const bool fits = message.queue < recoveries_.size() && terms_.role == Role::kResponder &&
                    recoveries_[message.queue].stage == Stage::kOver &&
                    message.generation == recoveries_[message.queue].number + 1;
  if (!fits)
    return GoDown(
        {Code::kProtocol, StrCat("the peer offered a queue pair while none was asked for", kSameRelease)});
  Recovery& recovery = recoveries_[message.queue];
  recovery.number = message.generation;
  const Status down(Code::kUnavailable,
                    StrCat("the port of ", NicOf(recovery).name(), " is down; check cable and switch"));
  auto made = NicOf(recovery).up() ? MakeQueue(message.queue) : Result<std::unique_ptr<Queue>>(down);
  Status connected = made.status();
  if (made.ok()) {
    connected = (*made)->Connect(rails_[recovery.rail].peer, {message.number, message.psn}, shared_.settings);
  }
  if (!connected.ok()) {
    WC_LOG(kInfo, "verbs: ", connected.message());
    return Say(QueueOver{message.queue, message.generation});
  }
  const QueueName name = (*made)->name();
  TellAddress(recovery.rail);
  BeginQueue(message.queue, std::move(*made), /*probe=*/false);
  Say(QueueAnswer{message.queue, message.generation, name.number, name.psn});
}

void Link::OnQueueAnswer(const QueueAnswer& message) {
  if (message.queue >= recoveries_.size() || terms_.role != Role::kInitiator) {
    return GoDown({Code::kProtocol, StrCat("the peer answered an offer that was not made", kSameRelease)});
  }
  Recovery& recovery = recoveries_[message.queue];
  if (recovery.stage != Stage::kOffered || message.generation != recovery.number) return;  // Ended meanwhile.
  const Status connected =
      recovery.waiting->Connect(rails_[recovery.rail].peer, {message.number, message.psn}, shared_.settings);
  if (!connected.ok()) return EndQueue(message.queue, connected);
  BeginQueue(message.queue, std::move(recovery.waiting), /*probe=*/true);
}

void Link::OnNicChanged(const Nic& nic) {
  if (closed_ || state_ == State::kDown) return;
  for (uint32_t queue = 0; queue < recoveries_.size() && state_ != State::kDown; ++queue) {
    Recovery& recovery = recoveries_[queue];
    if (&NicOf(recovery) != &nic) continue;
    if (!nic.up()) {
      EndQueue(queue, {Code::kUnavailable, StrCat(nic.name(), " is down; check cable and switch")});
    } else if (recovery.stage == Stage::kOver) {
      recovery.backoff.Hasten();
      shared_.next_step = TimePoint{};
    }
  }
  CheckProbes();
}

}  // namespace weightcast::transport::verbs
