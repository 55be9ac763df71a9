#include "transport/verbs/queue_pairs.h"

#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"
#include "transport/other_release.h"

namespace weightcast::transport::verbs {
namespace {

/// A queue pair's rail, and which of that rail's it is.
struct Turn {
  uint32_t rail = 0;
  size_t place = 0;
};

/// By number: lanes rail by rail in turn, so that the first ones use all NICs.
std::vector<Turn> InTurn(const std::vector<Rails::Agreed>& agreed) {
  std::vector<Turn> turns;
  for (size_t place = 0, before = 0; place == 0 || turns.size() > before; ++place) {
    before = turns.size();
    for (uint32_t rail = 0; rail < agreed.size(); ++rail) {
      if (place < agreed[rail].queues.size()) turns.push_back({.rail = rail, .place = place});
    }
  }
  return turns;
}

}  // namespace

Status QueuePairs::Begin(std::vector<Rails::Agreed> agreed, Control::Host& host) {
  const std::vector<Turn> turns = InTurn(agreed);
  const auto rails = static_cast<uint32_t>(agreed.size());
  if (turns.size() == rails || turns.size() - rails > kMaxLanes)
    return OtherRelease("the peer answered with no lanes, or with too many");
  link_.control = std::make_unique<Control>(host, *this, link_.shared.moved, rails, link_.own_cookie);
  link_.control->SetPeerCookie(link_.peer_cookie);
  link_.phase = link_.initiator() ? LinkState::Phase::kProbing : LinkState::Phase::kStarting;
  for (const auto& [rail, place] : turns) {
    const auto queue = static_cast<uint32_t>(pairs_.size());
    pairs_.push_back({.rail = rail});
    auto& [peer_nic, queues, peers] = agreed[rail];
    if (place > 0) link_.lanes.push_back(std::make_unique<Lane>(link_, *this, queue, peer_nic));
    auto& own = queues[place];
    Status connected;
    if (!peers.empty()) connected = own->Connect(rails_.PeerOf(rail), peers[place], link_.shared.settings);
    if (connected.ok()) {
      BeginQueue(queue, std::move(own));
    } else {
      own.reset();
      EndQueue(queue, connected);
    }
  }
  return Status::Ok();
}

void QueuePairs::OpenLanes() {
  for (uint32_t queue = link_.rails(); queue < pairs_.size(); ++queue) {
    if (pairs_[queue].stage == Stage::kProbing) pairs_[queue].stage = Stage::kUp;
    if (pairs_[queue].stage == Stage::kUp) {
      link_.LaneOf(queue).Open();
    } else {
      link_.shared.events.Push(
          LaneDown{link_.terms.id, queue - link_.rails(), {Code::kUnavailable, last_reason_}});
    }
  }
}

bool QueuePairs::Works() const {
  const auto up = [](const Pair& pair) { return pair.stage == Stage::kUp; };
  return link_.control->any_open() && std::any_of(pairs_.begin() + link_.rails(), pairs_.end(), up);
}

/// The initiator probes it, the responder waits for that.
void QueuePairs::BeginQueue(uint32_t queue, std::unique_ptr<Queue> made) {
  Pair& pair = pairs_[queue];
  pair.stage = Stage::kProbing;
  pair.peer_over = false;
  pair.backoff.OnBegun(Clock::now());
  std::optional<Probe> hello;
  if (link_.initiator()) {
    hello = {.cookie = link_.peer_cookie, .queue = static_cast<uint16_t>(queue), .generation = pair.number};
  } else {
    pair.give_up = pair.backoff.begun() + link_.shared.settings.lease;
  }
  if (link_.IsControl(queue)) {
    link_.control->Begin(queue, std::move(made), hello);
  } else {
    link_.LaneOf(queue).Begin(std::move(made), hello);
  }
}

/// Initiator: our probe has arrived.
void QueuePairs::OnQueueProven(uint32_t queue) {
  if (pairs_[queue].stage != Stage::kProbing) return;
  OpenQueue(queue);
  link_.Touch();  // It may have been the last to be proven.
}

/// Responder: the initiator's has.
void QueuePairs::OnQueueProbed(uint32_t queue, const Probe& probe) {
  const Pair& pair = pairs_[queue];
  if (link_.initiator() || probe.cookie != link_.own_cookie || probe.queue != queue ||
      probe.generation != pair.number) {
    return OnQueueBroken(queue, OtherRelease("the peer sent the probe of another queue pair"));
  }
  if (pair.stage == Stage::kProbing) OpenQueue(queue);
}

void QueuePairs::OpenQueue(uint32_t queue) {
  pairs_[queue].stage = Stage::kUp;
  if (link_.IsControl(queue)) return link_.control->Open(queue);
  if (link_.phase != LinkState::Phase::kReady) return;  // All at once, then.
  link_.LaneOf(queue).Open();
  link_.shared.events.Push(LaneUp{link_.terms.id, queue - link_.rails()});
}

void QueuePairs::OnQueueBroken(uint32_t queue, Status reason) {
  broken_.push_back({.queue = queue, .generation = pairs_[queue].number, .reason = std::move(reason)});
  link_.Touch();
}

bool QueuePairs::EndBroken() {
  if (broken_.empty()) return false;
  for (const Broken& broken : std::exchange(broken_, {})) {
    if (pairs_[broken.queue].number == broken.generation) EndQueue(broken.queue, broken.reason);
  }
  return true;
}

void QueuePairs::EndSilent() {
  for (uint32_t queue = 0; queue < pairs_.size(); ++queue) {
    if (pairs_[queue].stage != Stage::kProbing) continue;
    EndQueue(queue, Error(Code::kUnavailable, "nothing arrives over this queue pair of ",
                          rails_.NicOf(pairs_[queue].rail).device().name(),
                          ", while others work; check that NIC's cabling and GID"));
  }
}

void QueuePairs::Destroy(const Status& reason) {
  for (uint32_t queue = 0; queue < pairs_.size(); ++queue) DestroyQueue(queue, reason);
  for (const auto& lane : link_.lanes) lane->Settle(Code::kUnavailable, /*peer_alive=*/false);
}

void QueuePairs::Close() {
  for (const auto& lane : link_.lanes) lane->Close(Code::kCancelled);
  for (Pair& pair : pairs_) pair.waiting.reset();
}

void QueuePairs::Step(TimePoint now) {
  for (uint32_t queue = 0; queue < pairs_.size(); ++queue) {
    Pair& pair = pairs_[queue];
    if (pair.stage == Stage::kOver && pair.backoff.Take(now)) OfferNext(queue);
    if (pair.stage == Stage::kProbing && now >= pair.give_up) {
      EndQueue(queue, Error(Code::kUnavailable, "the peer did not confirm this queue pair within a lease",
                            kSeePeer));
    }
  }
}

TimePoint QueuePairs::NextStep() const {
  TimePoint next = TimePoint::max();
  for (const Pair& pair : pairs_) {
    if (pair.stage == Stage::kOver) next = std::min(next, pair.backoff.again());
    if (pair.stage == Stage::kProbing) next = std::min(next, pair.give_up);
  }
  return next;
}

void QueuePairs::DestroyQueue(uint32_t queue, const Status& reason) {
  pairs_[queue].waiting.reset();
  if (link_.IsControl(queue)) {
    link_.control->Break(queue);
  } else {
    link_.LaneOf(queue).Break(reason);
  }
}

/// Ours is destroyed, and the peer is told over what is left.
void QueuePairs::EndQueue(uint32_t queue, const Status& reason) {
  Pair& pair = pairs_[queue];
  if (link_.over()) return DestroyQueue(queue, reason);
  if (pair.stage == Stage::kEnding || pair.stage == Stage::kOver) return;
  last_reason_ = WithSameRelease(reason).message();
  pair.stage = Stage::kEnding;
  WC_LOG(kInfo, "verbs: queue pair ", queue, " over ", rails_.NicOf(pair.rail).device().name(), " to ",
         ToString(rails_.PeerOf(pair.rail)), " ends: ", last_reason_);
  destroying_ = queue;
  DestroyQueue(queue, reason);
  destroying_.reset();
  if (link_.phase != LinkState::Phase::kProbing && link_.control->lost()) {
    return link_.GoDown(
        Error(reason.code(), "no RDMA path to the peer is left, and the last one ended: ", last_reason_));
  }
  link_.Say(QueueOver{static_cast<uint16_t>(queue), pair.number});
  link_.control->TestOthers();
  if (pair.peer_over) SettleQueue(queue);
}

/// Both ends are destroyed: nothing of this generation can land any more, here or there.
void QueuePairs::SettleQueue(uint32_t queue) {
  Pair& pair = pairs_[queue];
  pair.stage = Stage::kOver;
  if (!link_.IsControl(queue)) link_.LaneOf(queue).Settle(Code::kUnavailable, /*peer_alive=*/true);
  link_.Touch();  // A barrier may have waited for it.
  if (!link_.initiator()) return;
  pair.backoff.OnOver(Clock::now());
  link_.shared.next_step = TimePoint{};
}

void QueuePairs::OfferNext(uint32_t queue) {
  Pair& pair = pairs_[queue];
  Nic& nic = rails_.NicOf(pair.rail);
  link_.shared.next_step = TimePoint{};
  if (!nic.up() || !link_.control->any_open()) return pair.backoff.OnFailed(Clock::now());
  auto made = Queue::Create(nic, link_.DepthOf(queue));
  if (!made.ok()) {
    WC_LOG(kInfo, "verbs: ", made.status().message());
    return pair.backoff.OnFailed(Clock::now());
  }
  ++pair.number;
  pair.stage = Stage::kOffered;
  pair.peer_over = false;
  pair.backoff.OnBegun(Clock::now());
  pair.waiting = std::move(*made);
  const QueueName name = pair.waiting->name();
  rails_.TellAddress(pair.rail);
  link_.Say(QueueOffer{static_cast<uint16_t>(queue), pair.number, name.number, name.psn});
}

void QueuePairs::On(const QueueOver& message) {
  if (message.queue >= pairs_.size())
    return link_.GoDown(OtherRelease("the peer ended a queue pair that the link does not have"));
  Pair& pair = pairs_[message.queue];
  if (message.generation != pair.number) return;  // Of a generation that is over.
  pair.peer_over = true;
  if (destroying_ == message.queue) return;
  if (pair.stage == Stage::kEnding) return SettleQueue(message.queue);
  OnQueueBroken(message.queue, {Code::kUnavailable, "the peer has ended this queue pair; see its log"});
}

void QueuePairs::On(const QueueOffer& message) {
  const bool fits = message.queue < pairs_.size() && !link_.initiator() &&
                    pairs_[message.queue].stage == Stage::kOver &&
                    message.generation == pairs_[message.queue].number + 1;
  if (!fits) return link_.GoDown(OtherRelease("the peer offered a queue pair while none was asked for"));
  Pair& pair = pairs_[message.queue];
  pair.number = message.generation;
  Nic& nic = rails_.NicOf(pair.rail);
  auto made = nic.up() ? Queue::Create(nic, link_.DepthOf(message.queue))
                       : Result<std::unique_ptr<Queue>>(nic.why_down());
  Status connected = made.status();
  if (made.ok()) {
    connected =
        (*made)->Connect(rails_.PeerOf(pair.rail), {message.number, message.psn}, link_.shared.settings);
  }
  if (!connected.ok()) {
    WC_LOG(kInfo, "verbs: ", connected.message());
    return link_.Say(QueueOver{message.queue, message.generation});
  }
  const QueueName name = (*made)->name();
  rails_.TellAddress(pair.rail);
  BeginQueue(message.queue, std::move(*made));
  link_.Say(QueueAnswer{message.queue, message.generation, name.number, name.psn});
}

void QueuePairs::On(const QueueAnswer& message) {
  if (message.queue >= pairs_.size() || !link_.initiator()) {
    return link_.GoDown(OtherRelease("the peer answered an offer that was not made"));
  }
  Pair& pair = pairs_[message.queue];
  if (pair.stage != Stage::kOffered || message.generation != pair.number) return;  // Ended meanwhile.
  const Status connected =
      pair.waiting->Connect(rails_.PeerOf(pair.rail), {message.number, message.psn}, link_.shared.settings);
  if (!connected.ok()) return EndQueue(message.queue, connected);
  BeginQueue(message.queue, std::move(pair.waiting));
}

void QueuePairs::OnNicChanged(const Nic& nic) {
  for (uint32_t queue = 0; queue < pairs_.size(); ++queue) {
    Pair& pair = pairs_[queue];
    if (&rails_.NicOf(pair.rail) != &nic) continue;
    if (!nic.up()) {
      EndQueue(queue, nic.why_down());
    } else if (pair.stage == Stage::kOver) {
      pair.backoff.Hasten();
      link_.shared.next_step = TimePoint{};
    }
  }
}

}  // namespace weightcast::transport::verbs
