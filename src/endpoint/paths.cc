#include "endpoint/paths.h"

#include <algorithm>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"

namespace weightcast::endpoint {
namespace {

using transport::LinkId;
using transport::Role;

Status OutOfTurn(std::string_view what) {
  return Error(Code::kProtocol, "it sent ", what, " out of turn or malformed");
}

}  // namespace

Paths::Paths(Role role, std::vector<NamedTransport> allowed, Peer peer, Hooks hooks)
    : role_(role), allowed_(std::move(allowed)), peer_(std::move(peer)), hooks_(std::move(hooks)) {}

// --- Initiator -------------------------------------------------------------------------------------

void Paths::Open(TimePoint deadline) {
  std::vector<PathOffer> offers;
  for (const NamedTransport& allowed : allowed_) {
    Path path{.name = allowed.name, .transport = allowed.transport};
    auto blob =
        allowed.why_not.empty() ? OpenLink(path, {}, deadline) : Status(Code::kUnavailable, allowed.why_not);
    if (!blob.ok()) SetDown(path, WithSameRelease(blob.status()).message());
    offers.push_back({path.name, blob.ok(), blob.ok() ? *blob : path.reason});
    paths_.push_back(std::move(path));
  }
  stage_ = Stage::kOffered;
  hooks_.send({MessageType::kOffers, EncodeOffers(offers)});
}

Result<std::string> Paths::OpenLink(Path& path, std::string_view offer, TimePoint deadline) {
  path.link = hooks_.add_link(path.transport);
  auto blob = path.transport->OpenLink(path.link, role_, peer_.incarnation, offer, deadline);
  if (blob.ok() && blob->size() > kMaxBlob) {
    hooks_.close_link(path.link);
    return Error(Code::kInternal, "the offer of transport ", path.name, " has ", blob->size(),
                 " bytes, more than ", kMaxBlob, kReportBug);
  }
  path.open = blob.ok();
  if (!path.open) hooks_.drop_link(path.link);
  return blob;
}

Status Paths::OnAnswers(std::string_view payload) {
  const auto answers = ParseOffers(payload);
  if (role_ != Role::kInitiator || stage_ != Stage::kOffered || !answers ||
      answers->size() != paths_.size()) {
    return OutOfTurn("answers");
  }
  for (size_t i = 0; i < paths_.size(); ++i) {
    if ((*answers)[i].transport != paths_[i].name) return OutOfTurn("answers");
  }
  stage_ = Stage::kAnswered;
  for (size_t i = 0; i < paths_.size(); ++i) {
    Path& path = paths_[i];
    const PathOffer& answer = (*answers)[i];
    if (path.here == Path::State::kDown) continue;
    if (!answer.open) {
      SetDown(path, StrCat("at the peer: ", answer.blob));
    } else if (Status status = path.transport->Establish(path.link, answer.blob); !status.ok()) {
      SetDown(path, WithSameRelease(status).message());
    }
  }
  Evaluate();
  return Status::Ok();
}

Status Paths::OnPath(std::string_view payload) {
  const auto notice = ParsePath(payload);
  if (role_ != Role::kInitiator || !notice || notice->index >= paths_.size())
    return OutOfTurn("a path's state");
  Path& path = paths_[notice->index];
  if (stage_ == Stage::kChosen)
    return Status::Ok();  // Of one that has been closed, or is lost: seen otherwise.
  if (stage_ != Stage::kAnswered) return OutOfTurn("a path's state");
  path.there = notice->ready ? Path::State::kReady : Path::State::kDown;
  if (!notice->ready) SetDown(path, StrCat("at the peer: ", notice->reason));
  Evaluate();
  return Status::Ok();
}

/// The first path that is ready on both sides, once all better ones are known to be down.
void Paths::Evaluate() {
  if (role_ != Role::kInitiator || stage_ != Stage::kAnswered) return;
  for (size_t i = 0; i < paths_.size(); ++i) {
    const Path& path = paths_[i];
    if (path.here == Path::State::kDown || path.there == Path::State::kDown) continue;
    if (path.here == Path::State::kReady && path.there == Path::State::kReady) return Choose(i);
    return;
  }
  Fail();
}

void Paths::GiveUp() {
  if (stage_ >= Stage::kChosen) return;
  for (Path& path : paths_) {
    const bool ready =
        path.here == Path::State::kReady && (role_ == Role::kResponder || path.there == Path::State::kReady);
    if (!ready && path.here != Path::State::kDown)
      SetDown(path,
              "not ready within half of setting connect_timeout; check that the peer runs, see its log");
  }
  if (stage_ == Stage::kAnswered && role_ == Role::kInitiator) return Evaluate();
  Fail();
}

void Paths::WarnOfFallback() const {
  for (int i = 0; i < chosen_; ++i) {
    const std::string text = StrCat("using ", paths_[chosen_].name, " instead of ", paths_[i].name, " to ",
                                    peer_.label, ": ", paths_[i].reason);
    // Between two machines it is no surprise that shared memory does not reach.
    if (peer_.same_kernel) {
      WC_LOG(kWarning, text);
    } else {
      WC_LOG(kInfo, text);
    }
  }
}

// --- Responder -------------------------------------------------------------------------------------

Status Paths::OnOffers(std::string_view payload, TimePoint deadline) {
  const auto offers = ParseOffers(payload);
  if (role_ != Role::kResponder || stage_ != Stage::kNew || !offers) return OutOfTurn("offers");
  stage_ = Stage::kAnswered;
  std::vector<PathOffer> answers;
  paths_.reserve(offers->size());
  for (const PathOffer& offer : *offers) {
    paths_.push_back({.name = offer.transport});
    answers.push_back(Answer(paths_.back(), offer, deadline));
  }
  hooks_.send({MessageType::kAnswers, EncodeOffers(answers)});
  if (std::ranges::all_of(paths_, [](const Path& path) { return path.here == Path::State::kDown; })) Fail();
  return Status::Ok();
}

PathOffer Paths::Answer(Path& path, const PathOffer& offer, TimePoint deadline) {
  const auto known = std::ranges::find(allowed_, offer.transport, &NamedTransport::name);
  if (!offer.open) {
    SetDown(path, StrCat("at the peer: ", offer.blob));
  } else if (known == allowed_.end()) {
    SetDown(path, "this process does not use it; see its setting transport, and its log");
  } else if (!known->why_not.empty()) {
    SetDown(path, known->why_not);
  } else {
    path.transport = known->transport;
    auto blob = OpenLink(path, offer.blob, deadline);
    if (blob.ok()) return {path.name, true, std::move(blob).value()};
    SetDown(path, WithSameRelease(blob.status()).message());
  }
  return {path.name, false, path.reason};
}

Status Paths::OnChosen(std::string_view payload) {
  const auto index = ParseChosen(payload);
  if (role_ != Role::kResponder || stage_ != Stage::kAnswered || !index || *index >= paths_.size()) {
    return OutOfTurn("a choice");
  }
  const Path& path = paths_[*index];
  if (path.here == Path::State::kDown) {
    // It was ready when we said so and has gone down since.
    stage_ = Stage::kOver;
    hooks_.failed(Error(Code::kUnavailable, "transport ", path.name, " has failed: ", path.reason));
    return Status::Ok();
  }
  if (path.here != Path::State::kReady) return OutOfTurn("a choice");
  Choose(*index);
  return Status::Ok();
}

void Paths::Report(const Path& path, bool ready) {
  if (role_ != Role::kResponder) return;
  const auto index = static_cast<uint8_t>(&path - paths_.data());
  hooks_.send({MessageType::kPath, EncodePath({index, ready, path.reason})});
}

// --- Both ------------------------------------------------------------------------------------------

Paths::Path* Paths::Find(LinkId link) {
  const auto found =
      std::ranges::find_if(paths_, [&](const Path& path) { return path.open && path.link == link; });
  return found == paths_.end() ? nullptr : &*found;
}

void Paths::OnReady(LinkId link, uint32_t lanes) {
  Path* path = Find(link);
  if (path == nullptr || path->here != Path::State::kOpening) return;
  path->here = Path::State::kReady;
  path->lanes = lanes;
  Report(*path, /*ready=*/true);
  Evaluate();
}

void Paths::OnDown(LinkId link, const Status& reason) {
  Path* path = Find(link);
  if (path == nullptr || stage_ >= Stage::kChosen || path->here == Path::State::kDown) return;
  if (role_ == Role::kResponder && path->here == Path::State::kReady) {
    // For the initiator the connection may stand already, and its choice be on its way.
    path->lost = reason;
    path->reason = WithSameRelease(reason).message();
  } else {
    SetDown(*path, WithSameRelease(reason).message());
  }
  Report(*path, /*ready=*/false);
  Evaluate();
}

void Paths::OnLaneDown(LinkId link, uint32_t lane, const Status& reason) {
  if (Path* path = Find(link); path != nullptr) path->lanes_down.emplace(lane, reason);
}

void Paths::OnLaneUp(LinkId link, uint32_t lane) {
  if (Path* path = Find(link); path != nullptr) path->lanes_down.erase(lane);
}

void Paths::SetDown(Path& path, std::string reason) {
  path.here = Path::State::kDown;
  path.reason = std::move(reason);
  ClosePath(path);
}

void Paths::Choose(size_t index) {
  chosen_ = static_cast<int>(index);
  stage_ = Stage::kChosen;
  if (role_ == Role::kInitiator) {
    hooks_.send({MessageType::kChosen, EncodeChosen(static_cast<uint8_t>(index))});
    WarnOfFallback();
  }
  for (size_t i = 0; i < paths_.size(); ++i) {
    if (i != index) ClosePath(paths_[i]);
  }
  hooks_.chosen();
}

void Paths::Fail() {
  if (stage_ >= Stage::kChosen) return;
  stage_ = Stage::kOver;
  const std::string reasons =
      Join(paths_, "; ", [](const Path& path) { return StrCat(path.name, ": ", path.reason); });
  hooks_.failed(Error(Code::kUnavailable, "no transport reaches ", peer_.label,
                      reasons.empty() ? "; allow the same transports on both sides (setting transport)"
                                      : StrCat(" (", reasons, ")")));
}

void Paths::ClosePath(Path& path) {
  if (std::exchange(path.open, false)) hooks_.close_link(path.link);
}

void Paths::Close() {
  stage_ = std::max(stage_, Stage::kOver);
  for (Path& path : paths_) ClosePath(path);
}

}  // namespace weightcast::endpoint
