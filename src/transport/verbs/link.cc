#include "transport/verbs/link.h"

#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"

namespace weightcast::transport::verbs {
namespace {

/// After half the time for opening: how soon at most it is looked again whether anything works.
constexpr Duration kLookAgain = std::chrono::milliseconds(10);

}  // namespace

Link::Link(const Shared& shared, Rails::Nics nics, const LinkTerms& terms)
    : state_(shared, terms), rails_(state_, nics), pairs_(state_, rails_), fences_(state_, pairs_) {}

Link::~Link() {
  state_.closed = true;
  pairs_.Close();
  if (state_.control != nullptr) state_.control->Leave();
}

// --- Opening

Result<std::string> Link::MakeAnswer(std::string_view offer) {
  std::vector<Rails::Agreed> agreed;
  WC_ASSIGN_OR_RETURN(std::string answer, rails_.Answer(offer, agreed));
  WC_RETURN_IF_ERROR(pairs_.Begin(std::move(agreed), static_cast<Control::Host&>(*this)));
  return answer;
}

Status Link::Establish(std::string_view answer) {
  if (state_.phase != Phase::kNew || !state_.initiator() || !rails_.offered()) {
    return Error(Code::kInvalidArgument, "link ", static_cast<uint32_t>(state_.terms.id),
                 " was given an answer that it was not waiting for (phase ", static_cast<int>(state_.phase),
                 ")", kReportBug);
  }
  WC_ASSIGN_OR_RETURN(auto agreed, rails_.OnAnswer(answer));
  patience_ = Clock::now() + (state_.terms.deadline - Clock::now()) / 2;
  WC_RETURN_IF_ERROR(pairs_.Begin(std::move(agreed), static_cast<Control::Host&>(*this)));
  state_.shared.next_step = TimePoint{};
  CheckProbes();
  return Status::Ok();
}

void Link::CheckProbes() {
  if (state_.phase != Phase::kProbing) return;
  const bool waiting = std::ranges::any_of(pairs_.all(), [](const QueuePairs::Pair& pair) {
    return pair.stage == QueuePairs::Stage::kProbing || pair.stage == QueuePairs::Stage::kMade;
  });
  if (waiting) return;
  if (!pairs_.Works())
    return state_.GoDown(Error(
        Code::kUnavailable, "no RDMA path to the peer; check that the NICs of both hosts reach each other: ",
        pairs_.last_reason()));
  state_.phase = Phase::kStarting;
  state_.Say(Start{});
}

void Link::MarkReady() {
  state_.phase = Phase::kReady;
  state_.shared.next_step = TimePoint{};  // What was planned before then is looked at from now on.
  state_.shared.events.Push(LinkReady{state_.terms.id, static_cast<uint32_t>(state_.lanes.size())});
  pairs_.OpenLanes();
}

std::string Link::Describe() const {
  const auto& lanes = state_.lanes;
  if (lanes.empty()) return state_.phase == Phase::kDown ? "verbs: down" : "verbs: connecting";
  std::string text = StrCat("verbs: ", lanes.size(), " lanes", rails_.Describe());
  const auto open = std::ranges::count_if(lanes, [](const auto& lane) { return lane->open(); });
  if (state_.phase == Phase::kReady && open != static_cast<std::ptrdiff_t>(lanes.size())) {
    text += StrCat("; ", open, " of them open, ", pairs_.last_reason());
  }
  return text;
}

// --- Traffic

size_t Link::Post(uint32_t lane, std::span<const Op> ops) {
  if (state_.phase != Phase::kReady || lane >= state_.lanes.size()) return 0;
  Lane& target = *state_.lanes[lane];
  size_t taken = 0;
  while (taken < ops.size() && target.HasRoom() && !state_.shared.events.full()) target.Push(ops[taken++]);
  if (taken > 0) target.Pump();
  return taken;
}

void Link::Continue() {
  state_.touched = false;
  EndBroken();
  CheckProbes();
  state_.PumpLanes();
  fences_.LookAtBarriers();
}

// --- Messages

void Link::OnControl(const ControlMessage& message) {
  peer_gone_ = peer_gone_ || std::holds_alternative<Bye>(message);
  if (state_.over()) return;
  if (std::holds_alternative<Start>(message)) {
    if (state_.initiator() || state_.phase != Phase::kStarting) return;
    state_.Say(Started{});
    MarkReady();
  } else if (std::holds_alternative<Started>(message)) {
    if (state_.initiator() && state_.phase == Phase::kStarting) MarkReady();
  } else if (const auto* opened = std::get_if<GrantOpened>(&message)) {
    state_.grants.Opened(opened->grant, opened->lease);
    state_.Touch();
  } else if (const auto* ask = std::get_if<AskGrant>(&message)) {
    if (state_.leases.IsOpen(ask->grant)) {
      state_.Say(GrantOpened{ask->grant, state_.leases.Of(ask->grant)});
    } else {
      state_.Say(GrantClosed{ask->grant});
    }
  } else if (const auto* closed = std::get_if<GrantClosed>(&message)) {
    state_.grants.Deny(closed->grant);
    state_.PumpLanes();
    state_.grants.EndDenial();
  } else if (const auto* revoke = std::get_if<RevokeGrant>(&message)) {
    state_.grants.Closed(revoke->grant);
    fences_.BeginBarrier(revoke->fence);
  } else if (const auto* region_over = std::get_if<RegionOver>(&message)) {
    fences_.OnRegionOver(*region_over);
  } else if (const auto* fenced = std::get_if<Fenced>(&message)) {
    fences_.OnFenced(*fenced);
  } else if (const auto* over = std::get_if<QueueOver>(&message)) {
    pairs_.On(*over);
  } else if (const auto* offer = std::get_if<QueueOffer>(&message)) {
    pairs_.On(*offer);
  } else if (const auto* answer = std::get_if<QueueAnswer>(&message)) {
    pairs_.On(*answer);
  } else if (const auto* address = std::get_if<NewAddress>(&message)) {
    rails_.On(*address);
  } else {
    state_.GoDown({Code::kUnavailable, "the peer has closed the link; see its log"});
  }
}

// --- The end

void Link::EndBroken() {
  while (pairs_.EndBroken() || state_.going_down) {
    CheckProbes();
    if (state_.going_down) TakeDown(*std::exchange(state_.going_down, std::nullopt));
  }
}

void Link::TakeDown(const Status& reason) {
  if (state_.phase == Phase::kDown) return;
  state_.phase = Phase::kDown;
  rails_.Drop();
  pairs_.Destroy(reason);
  fences_.EndAll();
  state_.shared.events.Push(LinkDown{state_.terms.id, reason});
}

void Link::Close() {
  const bool says_bye = !state_.silent() && state_.control->any_open();
  if (says_bye) state_.Say(Bye{});
  state_.closed = true;
  rails_.Drop();
  pairs_.Close();
  if (!says_bye && state_.control != nullptr) state_.control->Leave();
  fences_.EndAll();
  state_.phase = Phase::kDown;
}

// --- Time

void Link::Step(TimePoint now) {
  if (state_.over()) return;
  if (state_.phase == Phase::kReady) {
    fences_.Step(now);
    return pairs_.Step(now);
  }
  if (now >= state_.terms.deadline)
    return state_.GoDown({Code::kTimedOut,
                          "the RDMA link was not ready within half of setting connect_timeout; check that "
                          "the NICs of both hosts reach each other (GID, P_Key, subnet, firewall)"});
  if (state_.phase != Phase::kProbing || now < patience_) return;
  patience_ = now + std::max<Duration>((state_.terms.deadline - now) / 2, kLookAgain);
  // What is still silent must not take with it what works.
  if (!pairs_.Works()) return;
  pairs_.EndSilent();
  CheckProbes();
}

TimePoint Link::NextStep() const {
  if (state_.over()) return TimePoint::max();
  if (state_.phase == Phase::kReady) return std::min(fences_.NextStep(), pairs_.NextStep());
  return state_.phase == Phase::kProbing ? std::min(patience_, state_.terms.deadline) : state_.terms.deadline;
}

void Link::OnNicChanged(const Nic& nic) {
  if (state_.over()) return;
  pairs_.OnNicChanged(nic);
  CheckProbes();
}

}  // namespace weightcast::transport::verbs
