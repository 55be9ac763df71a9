#include "transport/tcp/link.h"

#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"
#include "transport/other_release.h"

namespace weightcast::transport::tcp {
namespace {

/// kOk, or what is wrong with an operation; `local` is found on the way.
Code Check(const Op& op, Regions& regions, const Imports<ImportedRegion>& imports, LocalRegion*& local) {
  if (op.grant.slot >= kGrantSlots || (op.has_signal && op.signal.grant.slot >= kGrantSlots))
    return Code::kInvalidArgument;
  if (op.kind == OpKind::kSignal)
    return op.signal.grant.slot < kGrantSlots ? Code::kOk : Code::kInvalidArgument;
  if (op.kind == OpKind::kRead && op.has_signal) return Code::kInvalidArgument;
  local = regions.Find(op.local);
  const ImportedRegion* const remote = imports.Find(op.remote);
  if (local == nullptr || remote == nullptr) return Code::kInvalidArgument;
  if (op.length > kMaxLength || !InBounds(op.local_offset, op.length, local->length) ||
      !InBounds(op.remote_offset, op.length, remote->length)) {
    return Code::kOutOfBounds;
  }
  return Code::kOk;
}

}  // namespace

Link::Link(const Shared& shared, const LinkTerms& terms)
    : copiers_(device::CopyOptions(shared.settings)),
      terms_(terms),
      shared_{shared, terms_, grants_, copiers_},
      opening_(std::in_place, shared.poller, terms_),
      recovery_(shared_, lanes_) {}

// --- Establishing

Status Link::Connect(const Answer& answer, TimePoint now) {
  if (terms_.role != Role::kInitiator || !terms_.addresses.empty() || state_ != State::kOpening) {
    return Error(Code::kInvalidArgument, "link ", static_cast<uint32_t>(terms_.id),
                 " was given an answer that it was not waiting for (role ", static_cast<int>(terms_.role),
                 ", state ", static_cast<int>(state_), ")", kReportBug);
  }
  if (answer.lanes > terms_.lanes)
    return OtherRelease("the peer's tcp answer has more lanes than were offered");
  if (answer.addresses.empty()) {
    return {Code::kUnavailable,
            "the peer offers no address for tcp; correct the peer's settings bind, interface and advertise"};
  }
  terms_.theirs = answer.cookie;
  terms_.lanes = answer.lanes;
  terms_.depth = std::min<uint32_t>(terms_.depth, answer.depth);
  terms_.addresses = answer.addresses;
  terms_.spread = answer.spread;
  opening_->Connect();
  Step(now);
  return Status::Ok();
}

void Link::OnConnectReady(uint32_t lane, size_t attempt, TimePoint now) {
  opening_ ? opening_->OnConnectReady(lane, attempt, now) : recovery_.OnConnectReady(lane, attempt, now);
  Step(now);
}

void Link::Step(TimePoint now) {
  if (state_ == State::kReady) return recovery_.Step(now);
  if (!opening_) return;
  if (Status opened = opening_->Step(now); !opened.ok()) return GoDown(std::move(opened));
  if (opening_->complete()) BecomeReady();
}

TimePoint Link::NextStep() const {
  if (opening_) return opening_->NextStep();
  return state_ == State::kReady ? recovery_.NextStep() : TimePoint::max();
}

bool Link::Awaits(const Greeting& greeting) const {
  if (terms_.role != Role::kResponder) return false;
  if (opening_) return greeting.generation == 0 && opening_->Awaits(greeting.lane);
  return state_ == State::kReady && recovery_.Awaits(greeting.lane, greeting.generation);
}

void Link::OnStart(const Greeting& start, UniqueFd socket) {
  if (!Awaits(start)) return;
  if (!opening_) return recovery_.OnStart(start.lane, std::move(socket));
  opening_->OnStart(start.lane, std::move(socket));
  if (opening_->complete()) BecomeReady();
}

void Link::BecomeReady() {
  for (uint32_t index = 0; index < terms_.lanes; ++index) {
    if (Status added = recovery_.Add(opening_->Take(index)); !added.ok()) return GoDown(std::move(added));
  }
  opening_.reset();
  state_ = State::kReady;
  shared_.events.Push(LinkReady{terms_.id, terms_.lanes});
}

void Link::GoDown(Status reason) {
  opening_.reset();
  recovery_.Stop();
  // There is nobody left to ask.
  for (const auto& lane : lanes_) lane->operations().FailAll(Code::kUnavailable);
  state_ = State::kDown;
  shared_.events.Push(LinkDown{terms_.id, std::move(reason)});
}

// --- Ready

Lane* Link::lane(uint32_t index) {
  return index < lanes_.size() && lanes_[index]->open() ? lanes_[index].get() : nullptr;
}

size_t Link::Post(uint32_t index, std::span<const Op> ops) {
  Lane* const target = state_ == State::kReady ? lane(index) : nullptr;
  if (target == nullptr) return 0;
  OwnOperations& operations = target->operations();
  size_t taken = 0;
  for (; taken < ops.size() && operations.HasRoom() && !shared_.events.full(); ++taken) {
    const Op& op = ops[taken];
    LocalRegion* local = nullptr;
    const Code checked = Check(op, shared_.regions, imports_, local);
    const bool remote = checked == Code::kOk && op.kind != OpKind::kSignal;
    const Code code =
        operations.Push(op, checked, local, remote ? *imports_.Find(op.remote) : ImportedRegion{});
    if (code != Code::kOk) shared_.events.Push(Completion{terms_.id, op.cookie, code});
  }
  if (taken > 0) target->Flush();
  return taken;
}

void Link::LookForDeadLanes() {
  if (state_ != State::kReady) return;
  for (const auto& lane : lanes_) {
    if (lane->open() || !lane->quiet()) return;
  }
  if (!failure_.ok()) return GoDown(failure_);
  GoDown(Error(Code::kUnavailable, "every lane is down; the first: ", lanes_.front()->reason()));
}

void Link::Continue() {
  if (copiers_.Advance()) shared_.moved = true;
  if (failure_.ok() && state_ == State::kReady) {
    failure_ = copiers_.failure();
    for (const auto& lane : lanes_) {
      if (!failure_.ok() && lane->open()) lane->HangUp(failure_);  // A device copies no more, for good.
    }
  }
  for (const auto& lane : lanes_) lane->Continue();
  if (state_ == State::kReady) recovery_.EndCopying();
  EndRevokes();
  LookForDeadLanes();
  if (state_ == State::kClosing) EndClosing();
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
  for (const auto& lane : lanes_) {
    text += StrCat(", ", lane->path());
    if (!lane->open()) text += StrCat(" (failed: ", lane->reason(), ")");
  }
  return text;
}

// --- Grants

Status Link::OpenGrant(const GrantName& grant, GrantReach ranges) {
  if (state_ > State::kReady)
    return {Code::kUnavailable, "the link to this peer is down; see its log, and connect again"};
  return grants_.Open(grant, std::move(ranges));
}

void Link::Revoke(const GrantName& grant) {
  grants_.Close(grant);
  for (const auto& lane : lanes_) lane->Fence(grant);
  if (copiers_.idle()) {
    shared_.events.Push(Revoked{terms_.id, grant});
  } else {
    revoking_.push_back({grant, copiers_.Fence()});
  }
}

void Link::EndRevokes() {
  std::erase_if(revoking_, [&](const Revoking& each) {
    if (!copiers_.Over(each.copies)) return false;
    shared_.events.Push(Revoked{terms_.id, each.grant});
    return true;
  });
}

// --- The end

void Link::Close() {
  if (state_ >= State::kClosing) return;
  for (const auto& lane : lanes_) {
    lane->Flush();  // Answers that are due: what has landed shall not look lost to the peer.
    lane->Close();
  }
  opening_.reset();
  recovery_.Stop();
  state_ = State::kClosing;
  EndClosing();
}

void Link::EndClosing() {
  if (!std::ranges::all_of(lanes_, [](const auto& lane) { return lane->quiet(); })) return;
  for (const auto& lane : lanes_) lane->operations().FailAll(Code::kCancelled);
  EndRevokes();
  state_ = State::kClosed;
}

}  // namespace weightcast::transport::tcp
