// Lanes that fail and begin again.
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "transport/tcp/keys.h"
#include "transport/tcp/link.h"

namespace weightcast::transport::tcp {
namespace {

/// For one try, where the lease is shorter.
constexpr Duration kLeastPatience = std::chrono::seconds(1);

std::string TextOf(const Result<SocketAddress>& address) { return address.ok() ? address->ToString() : "?"; }

}  // namespace

LaneConnector Link::NewConnector(uint32_t index, uint32_t generation) const {
  auto addresses = addresses_;
  if (spread_) {
    const auto first = static_cast<std::ptrdiff_t>(index % addresses.size());
    std::rotate(addresses.begin(), addresses.begin() + first, addresses.end());
  }
  const Greeting hello{Greeting::Kind::kHello, static_cast<uint16_t>(index), generation, terms_.theirs};
  return {shared_.poller,
          MakeKey(KeyKind::kConnect, terms_.id, index),
          hello,
          terms_.ours,
          std::move(addresses),
          terms_.lease,
          terms_.traffic_class};
}

void Link::SendStart(uint32_t index, uint32_t generation, const UniqueFd& socket) const {
  const auto start =
      EncodeGreeting({Greeting::Kind::kStart, static_cast<uint16_t>(index), generation, terms_.theirs});
  // The socket is empty: it takes 32 bytes whole. If the peer has gone, the lane will tell.
  [[maybe_unused]] const ssize_t sent =
      send(socket.get(), start.data(), start.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::unique_ptr<Lane> Link::NewLane(uint32_t index, UniqueFd socket) {
  const std::string peer = TextOf(PeerAddressOf(socket.get()));
  recoveries_[index].path = StrCat(TextOf(LocalAddressOf(socket.get())), " to ", peer);
  recoveries_[index].backoff.OnBegun(Clock::now());
  return std::make_unique<Lane>(shared_, static_cast<Lane::Owner&>(*this), grants_, terms_.id, index,
                                terms_.depth, std::move(socket), peer);
}

/// Says so on every other lane: one that looks open may be dead as well. When such a one fails, all that the
/// peer has not answered is said once more.
void Link::OnHungUp() {
  for (uint32_t index = 0; index < lanes_.size(); ++index) {
    if (lanes_[index]->open()) continue;
    Recovery& recovery = recoveries_[index];
    recovery.copying |= !lanes_[index]->quiet();  // Until EndCopying has seen that they are over.
    if (recovery.copying || recovery.over) continue;
    for (const auto& lane : lanes_) {
      if (!lane->open()) continue;
      lane->SayLaneOver(static_cast<uint16_t>(index), recovery.number, /*heard=*/false);
      lane->Flush();
    }
  }
}

std::string_view Link::OnLaneOver(uint32_t carrier, const Frame& frame) {
  const uint32_t index = frame.lane;
  if (index >= lanes_.size() || index == carrier)
    return "it ended a lane that does not exist, or the lane that carries this message";
  Recovery& recovery = recoveries_[index];
  if (frame.sequence > recovery.number) {
    // A generation of which the start has not reached us.
    const bool next = terms_.role == Role::kResponder && frame.sequence == recovery.number + 1;
    if (!next || lanes_[index]->open() || !lanes_[index]->quiet())
      return "it ended a lane that was not connected";
    SettleLane(index);
    recovery.number = frame.sequence;
  }
  if (frame.sequence == recovery.number && !recovery.over) {
    recovery.over = true;
    if (lanes_[index]->open())
      lanes_[index]->HangUp({Code::kUnavailable, "the peer has given this lane up; see its log"});
    if (!recovery.copying) SettleLane(index);
  }
  if (frame.heard) return "";
  if (recovery.copying && frame.sequence == recovery.number) {
    recovery.asked = true;  // It may still land.
  } else {
    lanes_[carrier]->SayLaneOver(frame.lane, frame.sequence, /*heard=*/true);
  }
  return "";
}

/// Lanes that have hung up and of which the last copy is over now.
void Link::EndCopying() {
  for (uint32_t index = 0; index < recoveries_.size(); ++index) {
    Recovery& recovery = recoveries_[index];
    if (!recovery.copying || !lanes_[index]->quiet()) continue;
    recovery.copying = false;
    if (!recovery.over) {
      OnHungUp();
      continue;
    }
    const auto carrier = std::ranges::find_if(lanes_, [](const auto& lane) { return lane->open(); });
    if (std::exchange(recovery.asked, false) && carrier != lanes_.end()) {
      (*carrier)->SayLaneOver(static_cast<uint16_t>(index), recovery.number, /*heard=*/true);
      (*carrier)->Flush();
    }
    SettleLane(index);
  }
}

/// Both sides have hung up: nothing of the old socket can land any more, here or there.
void Link::SettleLane(uint32_t index) {
  Recovery& recovery = recoveries_[index];
  recovery.over = true;
  lanes_[index]->Settle(Code::kUnavailable);
  if (terms_.role != Role::kInitiator) return;
  recovery.connector.reset();
  recovery.backoff.OnOver(Clock::now());
  shared_.next_step = TimePoint{};
}

void Link::StepRecovery(uint32_t index, TimePoint now) {
  Recovery& recovery = recoveries_[index];
  if (!recovery.connector) {
    if (!recovery.backoff.Take(now)) return;
    recovery.give_up = now + std::max(terms_.lease, kLeastPatience);
    recovery.connector.emplace(NewConnector(index, recovery.number + 1));
  }
  LaneConnector& connector = *recovery.connector;
  connector.Step(now);
  if (connector.welcomed()) {
    UniqueFd socket = connector.TakeSocket();
    SendStart(index, recovery.number + 1, socket);
    BeginLane(index, std::move(socket));
  } else if (connector.failed() || now >= recovery.give_up) {
    recovery.connector.reset();
    recovery.backoff.OnFailed(now);
    shared_.next_step = TimePoint{};
  }
}

void Link::BeginLane(uint32_t index, UniqueFd socket) {
  Recovery& recovery = recoveries_[index];
  recovery.connector.reset();
  ++recovery.number;
  recovery.over = false;
  lanes_[index] = NewLane(index, std::move(socket));
  shared_.events.Push(LaneUp{terms_.id, index});
  if (const Status added = lanes_[index]->Watch(); !added.ok()) lanes_[index]->HangUp(added);
}

}  // namespace weightcast::transport::tcp
