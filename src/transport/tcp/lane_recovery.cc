#include "transport/tcp/lane_recovery.h"

#include <algorithm>
#include <utility>

namespace weightcast::transport::tcp {
namespace {

/// For one try, where the lease is shorter.
constexpr Duration kLeastPatience = std::chrono::seconds(1);

}  // namespace

Status LaneRecovery::Add(UniqueFd socket) {
  numbers_.emplace_back();
  lanes_.push_back(NewLane(static_cast<uint32_t>(lanes_.size()), std::move(socket)));
  return lanes_.back()->Watch();
}

std::unique_ptr<Lane> LaneRecovery::NewLane(uint32_t index, UniqueFd socket) {
  numbers_[index].backoff.OnBegun(Clock::now());
  return std::make_unique<Lane>(shared_, static_cast<LaneOwner&>(*this), index, std::move(socket));
}

bool LaneRecovery::Awaits(uint32_t index, uint32_t generation) const {
  return index < lanes_.size() && !lanes_[index]->open() && lanes_[index]->quiet() &&
         generation == numbers_[index].generation + 1;
}

void LaneRecovery::OnStart(uint32_t index, UniqueFd socket) {
  Settle(index);  // Who begins again has hung up.
  Begin(index, std::move(socket));
}

void LaneRecovery::OnConnectReady(uint32_t index, size_t attempt, TimePoint now) {
  if (index < numbers_.size() && numbers_[index].connector) numbers_[index].connector->OnReady(attempt, now);
}

/// Says so on every other lane: one that looks open may be dead as well. When such a one fails, all that the
/// peer has not answered is said once more.
void LaneRecovery::OnHungUp() {
  for (uint32_t index = 0; index < lanes_.size(); ++index) {
    if (lanes_[index]->open()) continue;
    Number& number = numbers_[index];
    number.copying |= !lanes_[index]->quiet();  // Until EndCopying has seen that they are over.
    if (number.copying || number.over) continue;
    for (const auto& lane : lanes_) {
      if (!lane->open()) continue;
      lane->replies().SayLaneOver(static_cast<uint16_t>(index), number.generation, /*heard=*/false);
      lane->Flush();
    }
  }
}

std::string_view LaneRecovery::OnLaneOver(uint32_t carrier, const Frame& frame) {
  const uint32_t index = frame.lane;
  if (index >= lanes_.size() || index == carrier)
    return "it ended a lane that does not exist, or the lane that carries this message";
  Number& number = numbers_[index];
  if (frame.sequence > number.generation) {
    // A generation of which the start has not reached us.
    if (shared_.terms.role != Role::kResponder || !Awaits(index, frame.sequence))
      return "it ended a lane that was not connected";
    Settle(index);
    number.generation = frame.sequence;
  }
  if (frame.sequence == number.generation && !number.over) {
    number.over = true;
    if (lanes_[index]->open())
      lanes_[index]->HangUp({Code::kUnavailable, "the peer has ended this lane; see its log"});
    if (!number.copying) Settle(index);
  }
  if (frame.heard) return "";
  if (number.copying && frame.sequence == number.generation) {
    number.asked = true;  // It may still land.
  } else {
    lanes_[carrier]->replies().SayLaneOver(frame.lane, frame.sequence, /*heard=*/true);
  }
  return "";
}

void LaneRecovery::EndCopying() {
  for (uint32_t index = 0; index < numbers_.size(); ++index) {
    Number& number = numbers_[index];
    if (!number.copying || !lanes_[index]->quiet()) continue;
    number.copying = false;
    if (!number.over) {
      OnHungUp();
      continue;
    }
    const auto carrier = std::ranges::find_if(lanes_, [](const auto& lane) { return lane->open(); });
    if (std::exchange(number.asked, false) && carrier != lanes_.end()) {
      (*carrier)->replies().SayLaneOver(static_cast<uint16_t>(index), number.generation, /*heard=*/true);
      (*carrier)->Flush();
    }
    Settle(index);
  }
}

/// Both sides have hung up: nothing of the old socket can land any more, here or there.
void LaneRecovery::Settle(uint32_t index) {
  Number& number = numbers_[index];
  number.over = true;
  lanes_[index]->operations().FailAll(Code::kUnavailable);
  if (shared_.terms.role != Role::kInitiator) return;
  number.connector.reset();
  number.backoff.OnOver(Clock::now());
  shared_.next_step = TimePoint{};
}

void LaneRecovery::Step(TimePoint now) {
  for (uint32_t index = 0; index < numbers_.size(); ++index) StepOne(index, now);
}

void LaneRecovery::StepOne(uint32_t index, TimePoint now) {
  Number& number = numbers_[index];
  if (!number.connector) {
    if (!number.backoff.Take(now)) return;
    number.give_up = now + std::max(shared_.terms.lease, kLeastPatience);
    number.connector.emplace(shared_.poller, shared_.terms, index, number.generation + 1);
  }
  LaneConnector& connector = *number.connector;
  connector.Step(now);
  if (connector.welcomed()) {
    Begin(index, connector.TakeStarted());
  } else if (connector.failed() || now >= number.give_up) {
    number.connector.reset();
    number.backoff.OnFailed(now);
    shared_.next_step = TimePoint{};
  }
}

TimePoint LaneRecovery::NextStep() const {
  TimePoint next = TimePoint::max();
  for (const Number& number : numbers_) {
    next = std::min(next, number.connector ? std::min(number.give_up, number.connector->NextStep())
                                           : number.backoff.again());
  }
  return next;
}

void LaneRecovery::Begin(uint32_t index, UniqueFd socket) {
  Number& number = numbers_[index];
  number.connector.reset();
  ++number.generation;
  number.over = false;
  lanes_[index] = NewLane(index, std::move(socket));
  shared_.events.Push(LaneUp{shared_.terms.id, index});
  if (const Status added = lanes_[index]->Watch(); !added.ok()) lanes_[index]->HangUp(added);
}

void LaneRecovery::Stop() {
  for (Number& number : numbers_) number.connector.reset();
}

}  // namespace weightcast::transport::tcp
