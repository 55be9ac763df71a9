// How a link comes to be: which NICs meet, and which queue pairs work.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/advice.h"
#include "base/log.h"
#include "base/random.h"
#include "base/strings.h"
#include "transport/verbs/link.h"

namespace weightcast::transport::verbs {
namespace {

/// Of one rail, unless the setting `lanes` says otherwise.
constexpr uint32_t kDataQueues = 2;
/// Of a rail that is worth having: one for control and one for data.
constexpr size_t kLeast = 2;

/// After half the time for opening: how soon at most it is looked again whether anything works.
constexpr Duration kLookAgain = std::chrono::milliseconds(10);

/// Behind the first ones, which are taken.
std::vector<QueueName> NamesOf(const OfferedNic& offered, size_t taken) {
  std::vector<QueueName> names{offered.control};
  names.insert(names.end(), offered.data.begin(), offered.data.end());
  names.erase(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(taken));
  return names;
}

}  // namespace

Link::Link(const Shared& shared, Nics nics, const LinkTerms& terms)
    : shared_(shared), nics_(nics), terms_(terms), own_cookie_(RandomId()) {}

Link::~Link() {
  closed_ = true;
  for (const auto& lane : lanes_) lane->Close(Code::kCancelled);
  if (control_ != nullptr) Leave();
  for (const Fence& fence : fences_) {
    if (fence.region != nullptr) shared_.regions.Unuse(*fence.region);
  }
}

uint32_t Link::NicsUp() const {
  return static_cast<uint32_t>(std::ranges::count_if(nics_, [](const auto& nic) { return nic->up(); }));
}

uint32_t Link::DataQueuesOf(const Nic& nic) const {
  uint32_t wanted = kDataQueues;
  if (terms_.lanes > 0) {
    const uint32_t up = NicsUp();
    wanted = std::clamp((terms_.lanes + up - 1) / up, 1U, static_cast<uint32_t>(kMaxLanes) / up);
  }
  while (wanted > 1 && nic.Crowded(1 + wanted)) wanted /= 2;
  return wanted;
}

Result<std::string> Link::MakeOffer() {
  Offer offer{.cookie = own_cookie_, .nics = {}};
  Status last(Code::kUnavailable, WhyNoneIsUp());
  const uint32_t up = NicsUp();
  for (const auto& nic : nics_) {
    if (!nic->up()) continue;
    Offered made{.nic = nic->index(), .address = nic->address(), .queues = {}};
    uint32_t wanted = 1 + DataQueuesOf(*nic);
    // Our only NIC may meet two of the peer's: then another one is for control.
    if (up == 1 && wanted > 2 && wanted <= kMaxLanes && !nic->Crowded(wanted + 1)) ++wanted;
    for (uint32_t i = 0; i < wanted; ++i) {
      auto queue = Queue::Create(*nic, i == 0 ? Control::kDepth : Lane::kRequests);
      if (!queue.ok()) {
        last = queue.status();
        break;
      }
      made.queues.push_back(std::move(*queue));
    }
    if (made.queues.size() < kLeast) continue;
    OfferedNic told{
        .index = nic->index(), .address = nic->address(), .control = made.queues.front()->name(), .data = {}};
    for (size_t i = 1; i < made.queues.size(); ++i) told.data.push_back(made.queues[i]->name());
    offer.nics.push_back(std::move(told));
    offered_.push_back(std::move(made));
  }
  if (offered_.empty()) return last;
  return Encode(offer);
}

/// With what each NIC says.
std::string Link::WhyNoneIsUp() const {
  std::string why = "no RDMA port is up: ";
  if (nics_.empty()) return why + "the setting nics names none; correct it";
  for (const auto& nic : nics_) why += StrCat(&nic == &nics_.front() ? "" : "; ", nic->why_down().message());
  return why;
}

std::string Link::ReasonNoneFits(const Offer& offer) const {
  const auto up = std::ranges::find_if(nics_, [](const auto& nic) { return nic->up(); });
  if (up == nics_.end()) return WhyNoneIsUp();
  return StrCat(
      "none of the peer's RDMA ports can be reached from one of ours; the peer's first one and our ",
      (*up)->name(), ": ", WhyApart(offer.nics.front().address, (*up)->address()));
}

/// For each NIC of the offer one of ours that it reaches. On one subnet if any pair is; those that this link,
/// and then all links, use least. A second time only while there are queue pairs enough for all.
std::vector<Link::NicPair> Link::PairNics(const Offer& offer) const {
  const auto reaches = [&](const OfferedNic& theirs, const Nic& ours, bool routed) {
    return ours.up() && WhyApart(theirs.address, ours.address()).empty() &&
           (routed || SameSubnet(theirs.address, ours.address()));
  };
  const bool routed = std::ranges::none_of(offer.nics, [&](const OfferedNic& theirs) {
    return std::ranges::any_of(nics_, [&](const auto& ours) { return reaches(theirs, *ours, false); });
  });
  std::vector<NicPair> pairs;
  std::vector<uint32_t> used(nics_.size(), 0);
  for (size_t theirs = 0; theirs < offer.nics.size(); ++theirs) {
    std::optional<size_t> best;
    for (size_t i = 0; i < nics_.size(); ++i) {
      if (!reaches(offer.nics[theirs], *nics_[i], routed)) continue;
      if (used[i] > 0 && nics_[i]->Crowded((used[i] + 1) * (1 + DataQueuesOf(*nics_[i])))) continue;
      const auto load = [&](size_t nic) { return std::pair(used[nic], nics_[nic]->queues()); };
      if (!best || load(i) < load(*best)) best = i;
    }
    if (!best) continue;
    ++used[*best];
    pairs.push_back({.offered = theirs, .nic = *best});
  }
  // A peer's only NIC meets another of ours on its subnet, if it has offered a control queue pair more.
  if (routed || offer.nics.size() > 1 || pairs.empty() || offer.nics[0].data.size() < 3) return pairs;
  const auto other = std::ranges::find_if(nics_, [&](const auto& nic) {
    return nic->index() != pairs[0].nic && reaches(offer.nics[0], *nic, routed);
  });
  if (other != nics_.end()) pairs.push_back({.offered = 0, .nic = (*other)->index()});
  return pairs;
}

/// Lanes rail by rail in turn, so that the first ones use all NICs.
Status Link::MakeLanes(const std::vector<uint32_t>& counts) {
  const auto lanes = std::accumulate(counts.begin(), counts.end(), size_t{0});
  if (lanes == 0 || lanes > kMaxLanes)
    return {Code::kProtocol,
            "the peer answered with no lanes, or with too many; run the same release of weightcast on both "
            "sides"};
  control_ =
      std::make_unique<Control>(static_cast<Control::Host&>(*this), shared_.moved, rails(), own_cookie_);
  control_->SetPeerCookie(peer_cookie_);
  for (uint32_t rail = 0; rail < rails(); ++rail) recoveries_.push_back({.rail = rail});
  const uint32_t most = *std::ranges::max_element(counts);
  for (uint32_t turn = 0; turn < most; ++turn) {
    for (uint32_t rail = 0; rail < rails(); ++rail) {
      if (turn >= counts[rail]) continue;
      const auto index = static_cast<uint32_t>(lanes_.size());
      lanes_.push_back(std::make_unique<Lane>(shared_, static_cast<Lane::Host&>(*this), leases_, grants_,
                                              terms_.id, index, rails() + index, rails_[rail].peer_nic));
      recoveries_.push_back({.rail = rail});
    }
  }
  return Status::Ok();
}

/// Ours for those of the peer, connected to them; fewer where not all can be.
Result<Link::Queues> Link::MakeRail(Nic& nic, const Address& peer, std::span<const QueueName> names) const {
  Queues made;
  for (const QueueName& name : names) {
    auto queue = Queue::Create(nic, made.empty() ? Control::kDepth : Lane::kRequests);
    Status good = queue.status();
    if (good.ok()) good = (*queue)->Connect(peer, name, shared_.settings);
    if (good.ok()) {
      made.push_back(std::move(*queue));
    } else if (made.size() < kLeast) {
      return good;
    } else {
      break;
    }
  }
  return made;
}

Result<std::string> Link::MakeAnswer(std::string_view blob) {
  WC_ASSIGN_OR_RETURN(const Offer offer, ParseOffer(blob));
  peer_cookie_ = offer.cookie;
  Answer answer{.cookie = own_cookie_, .rails = {}};
  std::vector<uint32_t> counts;
  std::vector<Queues> made;
  Status last(Code::kUnavailable, ReasonNoneFits(offer));
  const std::vector<NicPair> pairs = PairNics(offer);
  std::vector<size_t> taken(offer.nics.size(), 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const NicPair& pair = pairs[i];
    const OfferedNic& offered = offer.nics[pair.offered];
    Nic& nic = *nics_[pair.nic];
    const auto sharing = static_cast<size_t>(
        std::count_if(pairs.begin() + static_cast<std::ptrdiff_t>(i), pairs.end(),
                      [&](const NicPair& other) { return other.offered == pair.offered; }));
    std::vector<QueueName> names = NamesOf(offered, taken[pair.offered]);
    names.resize(1 + std::min<size_t>((names.size() - 1) / sharing, DataQueuesOf(nic)));
    auto rail = MakeRail(nic, offered.address, names);
    if (!rail.ok()) {  // Others may do.
      last = rail.status();
      WC_LOG(kInfo, "verbs: ", last.message());
      continue;
    }
    AnsweredRail told{.offered = static_cast<uint8_t>(pair.offered),
                      .nic = nic.index(),
                      .address = nic.address(),
                      .control = rail->front()->name(),
                      .data = {}};
    for (size_t place = 1; place < rail->size(); ++place) told.data.push_back((*rail)[place]->name());
    taken[pair.offered] += rail->size();
    rails_.push_back(
        {.nic = nic.index(), .peer_nic = offered.index, .peer = offered.address, .own = nic.address()});
    counts.push_back(static_cast<uint32_t>(told.data.size()));
    answer.rails.push_back(std::move(told));
    made.push_back(std::move(*rail));
  }
  if (rails_.empty()) return last;
  WC_RETURN_IF_ERROR(MakeLanes(counts));
  for (uint32_t queue = 0; queue < recoveries_.size(); ++queue) {
    BeginQueue(queue, std::move(made[recoveries_[queue].rail][PlaceOf(queue)]), /*probe=*/false);
  }
  state_ = State::kStarting;
  return Encode(answer);
}

Status Link::Establish(std::string_view blob) {
  if (state_ != State::kNew || terms_.role != Role::kInitiator || offered_.empty()) {
    return {Code::kInvalidArgument, StrCat("the link is established already", kReportBug)};
  }
  WC_ASSIGN_OR_RETURN(const Answer answer, ParseAnswer(blob));
  std::vector<uint32_t> counts;
  std::vector<size_t> first;  // By rail: its first queue pair among those of its NIC.
  std::vector<size_t> taken(offered_.size(), 0);
  for (const AnsweredRail& rail : answer.rails) {
    const size_t wanted = 1 + rail.data.size();
    if (rail.offered >= offered_.size() ||
        wanted > offered_[rail.offered].queues.size() - taken[rail.offered]) {
      return {
          Code::kProtocol,
          "the peer's verbs answer does not fit the offer; run the same release of weightcast on both sides"};
    }
    first.push_back(taken[rail.offered]);
    taken[rail.offered] += wanted;
    counts.push_back(static_cast<uint32_t>(rail.data.size()));
  }
  peer_cookie_ = answer.cookie;
  rails_.clear();
  for (const AnsweredRail& rail : answer.rails) {
    const Offered& own = offered_[rail.offered];
    rails_.push_back({.nic = own.nic, .peer_nic = rail.nic, .peer = rail.address, .own = own.address});
  }
  WC_RETURN_IF_ERROR(MakeLanes(counts));
  state_ = State::kProbing;
  patience_ = Clock::now() + (terms_.deadline - Clock::now()) / 2;
  shared_.next_step = TimePoint{};
  for (uint32_t queue = 0; queue < recoveries_.size(); ++queue) {
    const uint32_t rail = recoveries_[queue].rail;
    const AnsweredRail& answered = answer.rails[rail];
    const uint32_t place = PlaceOf(queue);
    auto& own = offered_[answered.offered].queues[first[rail] + place];
    const QueueName& peer = place == 0 ? answered.control : answered.data[place - 1];
    if (Status connected = own->Connect(answered.address, peer, shared_.settings); !connected.ok()) {
      own.reset();
      EndQueue(queue, connected);
    } else {
      BeginQueue(queue, std::move(own), /*probe=*/true);
    }
  }
  offered_.clear();  // What the peer has no use for goes.
  CheckProbes();
  return Status::Ok();
}

uint32_t Link::PlaceOf(uint32_t queue) const {
  if (IsControl(queue)) return 0;
  const auto same = [&](const Recovery& recovery) { return recovery.rail == recoveries_[queue].rail; };
  return static_cast<uint32_t>(std::count_if(recoveries_.begin(), recoveries_.begin() + queue, same));
}

bool Link::Works() const {
  const auto up = [](const Recovery& recovery) { return recovery.stage == Stage::kUp; };
  return control_->any_open() && std::any_of(recoveries_.begin() + rails(), recoveries_.end(), up);
}

void Link::EndSilent(TimePoint now) {
  if (state_ != State::kProbing || now < patience_) return;
  patience_ = now + std::max<Duration>((terms_.deadline - now) / 2, kLookAgain);
  if (!Works()) return;
  for (uint32_t queue = 0; queue < recoveries_.size(); ++queue) {
    if (recoveries_[queue].stage != Stage::kProbing) continue;
    EndQueue(queue, {Code::kUnavailable,
                     StrCat("nothing arrives over this queue pair of ", NicOf(recoveries_[queue]).name(),
                            ", while others work; check that NIC's cabling and GID")});
  }
  CheckProbes();
}

void Link::CheckProbes() {
  if (state_ != State::kProbing) return;
  const bool waiting = std::ranges::any_of(recoveries_, [](const Recovery& recovery) {
    return recovery.stage == Stage::kProbing || recovery.stage == Stage::kMade;
  });
  if (waiting) return;
  if (!Works())
    return GoDown({Code::kUnavailable,
                   StrCat("no RDMA path to the peer; check that the NICs of both hosts reach each other: ",
                          last_reason_)});
  state_ = State::kStarting;
  Say(Start{});
}

/// Responder: what has not been probed by now is told to be over.
void Link::OnStart() {
  if (terms_.role != Role::kResponder || state_ != State::kStarting) return;
  for (uint32_t queue = rails(); queue < recoveries_.size(); ++queue) {
    if (recoveries_[queue].stage == Stage::kProbing) recoveries_[queue].stage = Stage::kUp;
  }
  Say(Started{});
  MarkReady();
}

void Link::OnStarted() {
  if (terms_.role == Role::kInitiator && state_ == State::kStarting) MarkReady();
}

void Link::MarkReady() {
  state_ = State::kReady;
  shared_.next_step = TimePoint{};  // What was planned before then is looked at from now on.
  shared_.events.Push(LinkReady{terms_.id, static_cast<uint32_t>(lanes_.size())});
  for (uint32_t queue = rails(); queue < recoveries_.size(); ++queue) {
    if (recoveries_[queue].stage == Stage::kUp) {
      LaneOf(queue).Open();
    } else {
      shared_.events.Push(LaneDown{terms_.id, queue - rails(), {Code::kUnavailable, last_reason_}});
    }
  }
}

std::string Link::Describe() const {
  if (rails_.empty()) return state_ == State::kDown ? "verbs: down" : "verbs: connecting";
  std::string text = StrCat("verbs: ", lanes_.size(), " lanes");
  for (const Rail& rail : rails_) {
    const Nic& nic = *nics_[rail.nic];
    text += StrCat(", ", nic.name(), " (", ToString(nic.address()), ") to ", ToString(rail.peer));
  }
  const auto open = std::ranges::count_if(lanes_, [](const auto& lane) { return lane->open(); });
  if (state_ == State::kReady && open != static_cast<std::ptrdiff_t>(lanes_.size())) {
    text += StrCat("; ", open, " of them open, ", last_reason_);
  }
  return text;
}

}  // namespace weightcast::transport::verbs
