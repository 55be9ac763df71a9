#include "transport/verbs/rails.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "transport/other_release.h"

namespace weightcast::transport::verbs {
namespace {

/// Of one rail, unless the setting `lanes` says otherwise.
constexpr uint32_t kDataQueues = 2;
/// Of a rail that is worth having: one for control and one for data.
constexpr size_t kLeast = 2;

/// Behind the first ones, which are taken.
std::vector<QueueName> NamesOf(const OfferedNic& offered, size_t taken) {
  std::vector<QueueName> names{offered.control};
  names.insert(names.end(), offered.data.begin(), offered.data.end());
  names.erase(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(taken));
  return names;
}

}  // namespace

uint32_t Rails::NicsUp() const {
  return static_cast<uint32_t>(std::ranges::count_if(nics_, [](const auto& nic) { return nic->up(); }));
}

uint32_t Rails::DataQueuesOf(const Nic& nic) const {
  uint32_t wanted = kDataQueues;
  if (link_.terms.lanes > 0) {
    const uint32_t up = NicsUp();
    wanted = std::clamp((link_.terms.lanes + up - 1) / up, 1U, static_cast<uint32_t>(kMaxLanes) / up);
  }
  while (wanted > 1 && nic.queues().Crowded(1 + wanted)) wanted /= 2;
  return wanted;
}

Result<std::string> Rails::Offer() {
  verbs::Offer offer{.cookie = link_.own_cookie, .nics = {}};
  Status last(Code::kUnavailable, ReasonNoneIsUp());
  const uint32_t up = NicsUp();
  for (const auto& nic : nics_) {
    if (!nic->up()) continue;
    Offered made{.nic = nic->index(), .address = nic->port().address(), .queues = {}};
    uint32_t wanted = 1 + DataQueuesOf(*nic);
    // Our only NIC may meet two of the peer's: then another one is for control.
    if (up == 1 && wanted > 2 && wanted <= kMaxLanes && !nic->queues().Crowded(wanted + 1)) ++wanted;
    for (uint32_t i = 0; i < wanted; ++i) {
      auto queue = Queue::Create(*nic, i == 0 ? Control::kDepth : Lane::kRequests);
      if (!queue.ok()) {
        last = queue.status();
        break;
      }
      made.queues.push_back(std::move(*queue));
    }
    if (made.queues.size() < kLeast) continue;
    OfferedNic told{.index = nic->index(),
                    .address = nic->port().address(),
                    .control = made.queues.front()->name(),
                    .data = {}};
    for (size_t i = 1; i < made.queues.size(); ++i) told.data.push_back(made.queues[i]->name());
    offer.nics.push_back(std::move(told));
    offered_.push_back(std::move(made));
  }
  if (offered_.empty()) return last;
  return Encode(offer);
}

/// With what each NIC says.
std::string Rails::ReasonNoneIsUp() const {
  std::string why = "no RDMA port is up: ";
  if (nics_.empty()) return why + "setting nics names none; correct that setting";
  for (const auto& nic : nics_) why += StrCat(&nic == &nics_.front() ? "" : "; ", nic->why_down().message());
  return why;
}

std::string Rails::ReasonNoneFits(const verbs::Offer& offer) const {
  const auto up = std::ranges::find_if(nics_, [](const auto& nic) { return nic->up(); });
  if (up == nics_.end()) return ReasonNoneIsUp();
  return StrCat(
      "none of the peer's RDMA ports can be reached from one of ours; the peer's first one and our ",
      (*up)->device().name(), ": ", WhyApart(offer.nics.front().address, (*up)->port().address()));
}

/// For each NIC of the offer one of ours that it reaches. On one subnet if any pair is; those that this link,
/// and then all links, use least. A second time only while there are queue pairs enough for all.
std::vector<Rails::NicPair> Rails::PairNics(const verbs::Offer& offer) const {
  const auto reaches = [&](const OfferedNic& theirs, const Nic& ours, bool routed) {
    return ours.up() && WhyApart(theirs.address, ours.port().address()).empty() &&
           (routed || SameSubnet(theirs.address, ours.port().address()));
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
      if (used[i] > 0 && nics_[i]->queues().Crowded((used[i] + 1) * (1 + DataQueuesOf(*nics_[i])))) continue;
      const auto load = [&](size_t nic) { return std::pair(used[nic], nics_[nic]->queues().size()); };
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

/// Ours for those of the peer, connected to them; fewer where not all can be.
Result<Rails::Queues> Rails::MakeRail(Nic& nic, const Address& peer, std::span<const QueueName> names) const {
  Queues made;
  for (const QueueName& name : names) {
    auto queue = Queue::Create(nic, made.empty() ? Control::kDepth : Lane::kRequests);
    Status good = queue.status();
    if (good.ok()) good = (*queue)->Connect(peer, name, link_.shared.settings);
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

Result<std::string> Rails::Answer(std::string_view blob, std::vector<Agreed>& agreed) {
  WC_ASSIGN_OR_RETURN(const verbs::Offer offer, ParseOffer(blob));
  link_.peer_cookie = offer.cookie;
  verbs::Answer answer{.cookie = link_.own_cookie, .rails = {}};
  Status last(Code::kUnavailable, ReasonNoneFits(offer));
  const std::vector<NicPair> pairs = PairNics(offer);
  std::vector<size_t> taken(offer.nics.size(), 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const NicPair& pair = pairs[i];
    const OfferedNic& offered = offer.nics[pair.offered];
    Nic& nic = *nics_[pair.nic];
    const auto sharing =
        static_cast<size_t>(std::ranges::count(std::span(pairs).subspan(i), pair.offered, &NicPair::offered));
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
                      .address = nic.port().address(),
                      .control = rail->front()->name(),
                      .data = {}};
    for (size_t place = 1; place < rail->size(); ++place) told.data.push_back((*rail)[place]->name());
    taken[pair.offered] += rail->size();
    rails_.push_back({.nic = nic.index(), .peer = offered.address, .own = nic.port().address()});
    answer.rails.push_back(std::move(told));
    agreed.push_back({.peer_nic = offered.index, .queues = std::move(*rail), .peers = {}});
  }
  if (rails_.empty()) return last;
  return Encode(answer);
}

Result<std::vector<Rails::Agreed>> Rails::OnAnswer(std::string_view blob) {
  WC_ASSIGN_OR_RETURN(const verbs::Answer answer, ParseAnswer(blob));
  std::vector<Agreed> agreed;
  std::vector<size_t> taken(offered_.size(), 0);
  for (const AnsweredRail& rail : answer.rails) {
    const size_t wanted = 1 + rail.data.size();
    if (rail.offered >= offered_.size() ||
        wanted > offered_[rail.offered].queues.size() - taken[rail.offered]) {
      return OtherRelease("the peer's verbs answer does not fit the offer");
    }
    taken[rail.offered] += wanted;
  }
  link_.peer_cookie = answer.cookie;
  std::ranges::fill(taken, 0);
  for (const AnsweredRail& rail : answer.rails) {
    Offered& own = offered_[rail.offered];
    rails_.push_back({.nic = own.nic, .peer = rail.address, .own = own.address});
    Agreed& made = agreed.emplace_back(Agreed{.peer_nic = rail.nic, .queues = {}, .peers = {rail.control}});
    made.peers.insert(made.peers.end(), rail.data.begin(), rail.data.end());
    while (made.queues.size() < made.peers.size())
      made.queues.push_back(std::move(own.queues[taken[rail.offered]++]));
  }
  offered_.clear();  // What the peer has no use for goes.
  return agreed;
}

std::string Rails::Describe() const {
  std::string text;
  for (const Rail& rail : rails_) {
    const Nic& nic = *nics_[rail.nic];
    text +=
        StrCat(", ", nic.device().name(), " (", ToString(nic.port().address()), ") to ", ToString(rail.peer));
  }
  return text;
}

void Rails::TellAddress(uint32_t rail) {
  const Address& now = nics_[rails_[rail].nic]->port().address();
  if (now == rails_[rail].own) return;
  rails_[rail].own = now;
  link_.Say(NewAddress{.rail = static_cast<uint8_t>(rail),
                       .facts = static_cast<uint8_t>(now.mtu | (now.grh ? kAddressGrh : 0)),
                       .reads = now.reads,
                       .lid = now.lid,
                       .pkey = now.pkey,
                       .gid = now.gid});
}

void Rails::On(const NewAddress& message) {
  if (message.rail >= rails_.size())
    return link_.GoDown(OtherRelease("the peer sent a new address for a NIC that the link does not have"));
  Address& peer = rails_[message.rail].peer;
  peer.mtu = message.facts & ~kAddressGrh;
  peer.grh = (message.facts & kAddressGrh) != 0;
  peer.reads = message.reads;
  peer.lid = message.lid;
  peer.pkey = message.pkey;
  peer.gid = message.gid;
}

}  // namespace weightcast::transport::verbs
