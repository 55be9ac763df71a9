#include "endpoint/roads.h"

#include <algorithm>

#include "base/log.h"
#include "base/strings.h"

namespace weightcast::endpoint {
namespace {

using transport::LinkId;
using transport::Role;

Status OutOfTurn(std::string_view what) {
  return {Code::kProtocol, StrCat("the peer sent ", what, " out of turn or malformed")};
}

}  // namespace

Roads::Roads(Role role, std::vector<NamedTransport> allowed, Peer peer, Hooks hooks)
    : role_(role), allowed_(std::move(allowed)), peer_(std::move(peer)), hooks_(std::move(hooks)) {}

// --- Initiator -------------------------------------------------------------------------------------

void Roads::Open(TimePoint deadline) {
  std::vector<RoadOffer> offers;
  for (const NamedTransport& allowed : allowed_) {
    Road road{.name = allowed.name, .transport = allowed.transport};
    auto blob =
        allowed.why_not.empty() ? OpenLink(road, {}, deadline) : Status(Code::kUnavailable, allowed.why_not);
    if (!blob.ok()) SetDown(road, blob.status().message());
    offers.push_back({road.name, blob.ok(), blob.ok() ? *blob : road.reason});
    roads_.push_back(std::move(road));
  }
  stage_ = Stage::kOffered;
  hooks_.send({MessageType::kOffers, EncodeOffers(offers)});
}

Result<std::string> Roads::OpenLink(Road& road, std::string_view offer, TimePoint deadline) {
  road.link = hooks_.add_link(road.transport);
  auto blob = road.transport->OpenLink(road.link, role_, peer_.incarnation, offer, deadline);
  if (blob.ok() && blob->size() > kMaxBlob) {
    hooks_.close_link(road.link);
    return Status(Code::kInternal, "the transport's offer is too long; please report this as a bug");
  }
  road.open = blob.ok();
  if (!road.open) hooks_.drop_link(road.link);
  return blob;
}

Status Roads::OnAnswers(std::string_view payload) {
  const auto answers = ParseOffers(payload);
  if (role_ != Role::kInitiator || stage_ != Stage::kOffered || !answers ||
      answers->size() != roads_.size()) {
    return OutOfTurn("answers");
  }
  for (size_t i = 0; i < roads_.size(); ++i) {
    if ((*answers)[i].transport != roads_[i].name) return OutOfTurn("answers");
  }
  stage_ = Stage::kAnswered;
  for (size_t i = 0; i < roads_.size(); ++i) {
    Road& road = roads_[i];
    const RoadOffer& answer = (*answers)[i];
    if (road.here == Road::State::kDown) continue;
    if (!answer.open) {
      SetDown(road, answer.blob);
    } else if (Status status = road.transport->Establish(road.link, answer.blob); !status.ok()) {
      SetDown(road, status.message());
    }
  }
  Evaluate();
  return Status::Ok();
}

Status Roads::OnRoad(std::string_view payload) {
  const auto notice = ParseRoad(payload);
  if (role_ != Role::kInitiator || !notice || notice->index >= roads_.size())
    return OutOfTurn("a path's state");
  Road& road = roads_[notice->index];
  if (stage_ == Stage::kChosen)
    return Status::Ok();  // Of one that has been closed, or is lost: seen otherwise.
  if (stage_ != Stage::kAnswered) return OutOfTurn("a path's state");
  road.there = notice->ready ? Road::State::kReady : Road::State::kDown;
  if (!notice->ready) SetDown(road, notice->reason);
  Evaluate();
  return Status::Ok();
}

/// The first road that is ready on both sides, once all better ones are known to be down.
void Roads::Evaluate() {
  if (role_ != Role::kInitiator || stage_ != Stage::kAnswered) return;
  for (size_t i = 0; i < roads_.size(); ++i) {
    const Road& road = roads_[i];
    if (road.here == Road::State::kDown || road.there == Road::State::kDown) continue;
    if (road.here == Road::State::kReady && road.there == Road::State::kReady) return Choose(i);
    return;
  }
  Fail();
}

void Roads::GiveUp() {
  if (stage_ >= Stage::kChosen) return;
  for (Road& road : roads_) {
    const bool ready =
        road.here == Road::State::kReady && (role_ == Role::kResponder || road.there == Road::State::kReady);
    if (!ready && road.here != Road::State::kDown) SetDown(road, "not ready in time");
  }
  if (stage_ == Stage::kAnswered && role_ == Role::kInitiator) return Evaluate();
  Fail();
}

void Roads::WarnOfFallback() const {
  for (int i = 0; i < chosen_; ++i) {
    const std::string text = StrCat("using ", roads_[chosen_].name, " instead of ", roads_[i].name, " to ",
                                    peer_.label, ": ", roads_[i].reason);
    // Between two machines it is no surprise that shared memory does not reach.
    if (peer_.same_kernel) {
      WC_LOG(kWarning, text);
    } else {
      WC_LOG(kInfo, text);
    }
  }
}

// --- Responder -------------------------------------------------------------------------------------

Status Roads::OnOffers(std::string_view payload, TimePoint deadline) {
  const auto offers = ParseOffers(payload);
  if (role_ != Role::kResponder || stage_ != Stage::kNew || !offers) return OutOfTurn("offers");
  stage_ = Stage::kAnswered;
  std::vector<RoadOffer> answers;
  roads_.reserve(offers->size());
  for (const RoadOffer& offer : *offers) {
    roads_.push_back({.name = offer.transport});
    answers.push_back(Answer(roads_.back(), offer, deadline));
  }
  hooks_.send({MessageType::kAnswers, EncodeOffers(answers)});
  const bool any = std::any_of(roads_.begin(), roads_.end(),
                               [](const Road& road) { return road.here != Road::State::kDown; });
  if (!any) Fail();
  return Status::Ok();
}

RoadOffer Roads::Answer(Road& road, const RoadOffer& offer, TimePoint deadline) {
  const auto known = std::find_if(allowed_.begin(), allowed_.end(), [&](const NamedTransport& allowed) {
    return allowed.name == offer.transport;
  });
  if (!offer.open) {
    SetDown(road, offer.blob);
  } else if (known == allowed_.end()) {
    SetDown(road, "the other side does not use it; see its setting transport");
  } else if (!known->why_not.empty()) {
    SetDown(road, known->why_not);
  } else {
    road.transport = known->transport;
    auto blob = OpenLink(road, offer.blob, deadline);
    if (blob.ok()) return {road.name, true, std::move(blob).value()};
    SetDown(road, blob.status().message());
  }
  return {road.name, false, road.reason};
}

Status Roads::OnChosen(std::string_view payload) {
  const auto index = ParseChosen(payload);
  if (role_ != Role::kResponder || stage_ != Stage::kAnswered || !index || *index >= roads_.size()) {
    return OutOfTurn("a choice");
  }
  const Road& road = roads_[*index];
  if (road.here == Road::State::kDown) {
    // It was ready when we said so and has gone down since.
    stage_ = Stage::kOver;
    hooks_.failed({Code::kUnavailable, StrCat(road.name, ": ", road.reason)});
    return Status::Ok();
  }
  if (road.here != Road::State::kReady) return OutOfTurn("a choice");
  Choose(*index);
  return Status::Ok();
}

void Roads::Tell(const Road& road, bool ready) {
  if (role_ != Role::kResponder) return;
  const auto index = static_cast<uint8_t>(&road - roads_.data());
  hooks_.send({MessageType::kRoad, EncodeRoad({index, ready, road.reason})});
}

// --- Both ------------------------------------------------------------------------------------------

Roads::Road* Roads::Find(LinkId link) {
  const auto found = std::find_if(roads_.begin(), roads_.end(),
                                  [&](const Road& road) { return road.open && road.link == link; });
  return found == roads_.end() ? nullptr : &*found;
}

void Roads::OnReady(LinkId link, uint32_t lanes) {
  Road* road = Find(link);
  if (road == nullptr || road->here != Road::State::kOpening) return;
  road->here = Road::State::kReady;
  road->lanes = lanes;
  Tell(*road, /*ready=*/true);
  Evaluate();
}

void Roads::OnDown(LinkId link, const Status& reason) {
  Road* road = Find(link);
  if (road == nullptr || stage_ >= Stage::kChosen || road->here == Road::State::kDown) return;
  if (role_ == Role::kResponder && road->here == Road::State::kReady) {
    // For the initiator the connection may stand already, and its choice be on its way.
    road->lost = reason;
    road->reason = reason.message();
  } else {
    SetDown(*road, reason.message());
  }
  Tell(*road, /*ready=*/false);
  Evaluate();
}

void Roads::OnLaneDown(LinkId link, uint32_t lane) {
  if (Road* road = Find(link); road != nullptr) road->lanes_down.push_back(lane);
}

void Roads::OnLaneUp(LinkId link, uint32_t lane) {
  if (Road* road = Find(link); road != nullptr) std::erase(road->lanes_down, lane);
}

void Roads::SetDown(Road& road, std::string reason) {
  road.here = Road::State::kDown;
  road.reason = std::move(reason);
  CloseRoad(road);
}

void Roads::Choose(size_t index) {
  chosen_ = static_cast<int>(index);
  stage_ = Stage::kChosen;
  if (role_ == Role::kInitiator) {
    hooks_.send({MessageType::kChosen, EncodeChosen(static_cast<uint8_t>(index))});
    WarnOfFallback();
  }
  for (size_t i = 0; i < roads_.size(); ++i) {
    if (i != index) CloseRoad(roads_[i]);
  }
  hooks_.chosen();
}

void Roads::Fail() {
  if (stage_ >= Stage::kChosen) return;
  stage_ = Stage::kOver;
  std::string reasons;
  for (const Road& road : roads_) {
    reasons += StrCat(reasons.empty() ? "" : "; ", road.name, ": ", road.reason);
  }
  hooks_.failed({Code::kUnavailable, StrCat("no transport reaches ", peer_.label, reasons.empty() ? "" : " (",
                                            reasons, reasons.empty() ? "" : ")")});
}

void Roads::CloseRoad(Road& road) {
  if (std::exchange(road.open, false)) hooks_.close_link(road.link);
}

void Roads::Close() {
  stage_ = std::max(stage_, Stage::kOver);
  for (Road& road : roads_) CloseRoad(road);
}

}  // namespace weightcast::endpoint
