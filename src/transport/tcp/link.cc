#include "transport/tcp/link.h"

#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"
#include "transport/tcp/keys.h"

namespace weightcast::transport::tcp {

Link::Link(const LaneShared& shared, const LinkTerms& terms)
    : shared_(shared), terms_(terms), started_(terms.lanes) {
  shared_.copiers = &copiers_;
}

Status Link::Connect(const Answer& answer, TimePoint now) {
  if (terms_.role != Role::kInitiator || !connectors_.empty() || state_ != State::kOpening) {
    return {Code::kInvalidArgument, StrCat("this link is not waiting for an answer", kReportBug)};
  }
  if (answer.lanes > terms_.lanes)
    return {Code::kProtocol,
            "the peer's tcp answer has more lanes than were offered; run the same release of weightcast on "
            "both sides"};
  if (answer.addresses.empty()) {
    return {Code::kUnavailable,
            "the peer offers no address for tcp; correct its settings bind, interface and advertise"};
  }
  terms_.theirs = answer.cookie;
  terms_.lanes = answer.lanes;
  terms_.depth = std::min<uint32_t>(terms_.depth, answer.depth);
  started_.resize(terms_.lanes);
  addresses_ = answer.addresses;
  spread_ = answer.spread;
  connectors_.reserve(terms_.lanes);
  for (uint32_t lane = 0; lane < terms_.lanes; ++lane) connectors_.push_back(NewConnector(lane, 0));
  Step(now);
  return Status::Ok();
}

void Link::OnConnectReady(uint32_t lane, size_t attempt, TimePoint now) {
  if (state_ == State::kOpening && lane < connectors_.size()) {
    connectors_[lane].OnReady(attempt, now);
  } else if (state_ == State::kReady && lane < recoveries_.size() && recoveries_[lane].connector) {
    recoveries_[lane].connector->OnReady(attempt, now);
  }
  Step(now);
}

void Link::Step(TimePoint now) {
  for (uint32_t index = 0; state_ == State::kReady && index < recoveries_.size(); ++index)
    StepRecovery(index, now);
  if (state_ != State::kOpening) return;
  for (LaneConnector& connector : connectors_) {
    if (now >= connector.NextStep()) connector.Step(now);
    if (connector.failed()) {
      return GoDown({Code::kUnavailable,
                     StrCat("no address of the peer answers; check firewall, bind, interface and advertise (",
                            connector.report(), ")")});
    }
  }
  if (!connectors_.empty() && std::ranges::all_of(connectors_, &LaneConnector::welcomed)) return OnWelcomed();
  if (now < terms_.deadline) return;
  std::string tried;
  for (const LaneConnector& connector : connectors_)
    tried = connector.report().empty() ? tried : StrCat(" (", connector.report(), ")");
  GoDown({Code::kTimedOut, StrCat("not all lanes were connected within half of connect_timeout; check "
                                  "firewall, bind, interface and advertise",
                                  tried)});
}

TimePoint Link::NextStep() const {
  TimePoint next = state_ == State::kOpening ? terms_.deadline : TimePoint::max();
  for (const LaneConnector& connector : connectors_) next = std::min(next, connector.NextStep());
  if (state_ != State::kReady) return next;
  for (const Recovery& recovery : recoveries_) {
    next = std::min(next, recovery.connector ? std::min(recovery.give_up, recovery.connector->NextStep())
                                             : recovery.backoff.again());
  }
  return next;
}

void Link::OnWelcomed() {
  for (uint32_t lane = 0; lane < terms_.lanes; ++lane) {
    started_[lane] = connectors_[lane].TakeSocket();
    SendStart(lane, 0, started_[lane]);
  }
  connectors_.clear();
  BecomeReady();
}

bool Link::Awaits(const Greeting& greeting) const {
  const uint32_t lane = greeting.lane;
  if (terms_.role != Role::kResponder) return false;
  if (state_ == State::kOpening) {
    return greeting.generation == 0 && lane < started_.size() && !started_[lane].valid();
  }
  return state_ == State::kReady && lane < lanes_.size() && !lanes_[lane]->open() && lanes_[lane]->quiet() &&
         greeting.generation == recoveries_[lane].number + 1;
}

void Link::OnStart(const Greeting& start, UniqueFd socket) {
  if (!Awaits(start)) return;
  if (state_ == State::kReady) {
    SettleLane(start.lane);  // Who begins anew has hung up.
    return BeginLane(start.lane, std::move(socket));
  }
  started_[start.lane] = std::move(socket);
  if (std::ranges::all_of(started_, &UniqueFd::valid)) BecomeReady();
}

void Link::BecomeReady() {
  recoveries_.resize(terms_.lanes);
  for (uint32_t index = 0; index < terms_.lanes; ++index) {
    lanes_.push_back(NewLane(index, std::move(started_[index])));
    if (const Status added = lanes_.back()->Watch(); !added.ok()) return GoDown(added);
  }
  started_.clear();
  state_ = State::kReady;
  shared_.events.Push(LinkReady{terms_.id, terms_.lanes});
}

void Link::GoDown(Status reason) {
  connectors_.clear();
  started_.clear();
  for (Recovery& recovery : recoveries_) recovery.connector.reset();
  for (const auto& lane : lanes_) lane->Settle(Code::kUnavailable);  // There is nobody left to ask.
  state_ = State::kDown;
  shared_.events.Push(LinkDown{terms_.id, std::move(reason)});
}

Lane* Link::lane(uint32_t index) {
  return index < lanes_.size() && lanes_[index]->open() ? lanes_[index].get() : nullptr;
}

void Link::LookForDeadLanes() {
  if (state_ != State::kReady) return;
  for (const auto& lane : lanes_) {
    if (lane->open() || !lane->quiet()) return;
  }
  if (!failure_.ok()) return GoDown(failure_);
  GoDown({Code::kUnavailable, StrCat("every lane is down; the first: ", lanes_.front()->reason())});
}

size_t Link::Post(uint32_t index, std::span<const Op> ops) {
  Lane* const target = state_ == State::kReady ? lane(index) : nullptr;
  if (target == nullptr) return 0;
  size_t taken = 0;
  for (; taken < ops.size() && target->HasRoom() && !shared_.events.full(); ++taken) {
    const Op& op = ops[taken];
    LocalRegion* local = nullptr;
    const Code checked = Check(op, local);
    const bool remote = checked == Code::kOk && op.kind != OpKind::kSignal;
    const Code code = target->Push(op, checked, local, remote ? *imports_.Find(op.remote) : ImportedRegion{});
    if (code != Code::kOk) shared_.events.Push(Completion{terms_.id, op.cookie, code});
  }
  if (taken > 0) target->Flush();
  return taken;
}

Code Link::Check(const Op& op, LocalRegion*& local) {
  if (op.grant.slot >= kGrantSlots || (op.has_signal && op.signal.grant.slot >= kGrantSlots))
    return Code::kInvalidArgument;
  if (op.kind == OpKind::kSignal)
    return op.signal.grant.slot < kGrantSlots ? Code::kOk : Code::kInvalidArgument;
  if (op.kind == OpKind::kRead && op.has_signal) return Code::kInvalidArgument;
  local = shared_.regions.Find(op.local);
  const ImportedRegion* const remote = imports_.Find(op.remote);
  if (local == nullptr || remote == nullptr) return Code::kInvalidArgument;
  if (op.length > kMaxLength || !InBounds(op.local_offset, op.length, local->length) ||
      !InBounds(op.remote_offset, op.length, remote->length)) {
    return Code::kOutOfBounds;
  }
  return Code::kOk;
}

Status Link::OpenGrant(const GrantName& grant, GrantReach ranges) {
  if (Down()) return {Code::kUnavailable, "the link to this peer is down; connect again"};
  return grants_.Open(grant, std::move(ranges));
}

void Link::Forget(const LocalRegion& region) {
  for (const auto& lane : lanes_) lane->Forget(region);
}

std::string Link::Describe() const {
  if (lanes_.empty()) return state_ == State::kOpening ? "tcp: connecting" : "tcp: down";
  const auto open = std::ranges::count_if(lanes_, [](const auto& lane) { return lane->open(); });
  const auto all = static_cast<std::ptrdiff_t>(lanes_.size());
  std::string text = open == all ? StrCat("tcp: ", all) : StrCat("tcp: ", open, " of ", all);
  text += all == 1 ? " lane" : " lanes";
  for (size_t i = 0; i < lanes_.size(); ++i) {
    text += StrCat(", ", recoveries_[i].path);
    if (!lanes_[i]->open()) text += StrCat(" (failed: ", lanes_[i]->reason(), ")");
  }
  return text;
}

}  // namespace weightcast::transport::tcp
