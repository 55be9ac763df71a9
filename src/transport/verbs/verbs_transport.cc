#include "transport/verbs/verbs_transport.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "transport/verbs/factory.h"

namespace weightcast::transport {

Result<std::unique_ptr<Transport>> CreateVerbsTransport(const TransportOptions& options) {
  WC_ASSIGN_OR_RETURN(auto api, drivers::LoadIbverbs());
  return verbs::VerbsTransport::Create(options, std::move(api));
}

namespace verbs {
namespace {

/// Of one operation; cut into work requests, whose length the device bounds.
constexpr uint64_t kLongestOperation = uint64_t{1} << 40;
/// How long a closed link tries to say so.
constexpr Duration kCloseGrace = std::chrono::seconds(1);
constexpr Duration kLastCloseGrace = std::chrono::milliseconds(100);

}  // namespace

Result<std::unique_ptr<Transport>> VerbsTransport::Create(const TransportOptions& options,
                                                          std::shared_ptr<Ibverbs> api) {
  WC_ASSIGN_OR_RETURN(auto nics, OpenNics(api, options.settings));
  WC_ASSIGN_OR_RETURN(auto poller, Poller::Create());
  WC_ASSIGN_OR_RETURN(auto timer, TimerFd::Create());
  std::unique_ptr<VerbsTransport> made(
      new VerbsTransport(options, std::move(poller), std::move(timer), std::move(nics)));
  WC_RETURN_IF_ERROR(made->registry_.Create(made->nics_));
  WC_RETURN_IF_ERROR(made->Watch());
  return std::unique_ptr<Transport>(std::move(made));
}

VerbsTransport::VerbsTransport(const TransportOptions& options, Poller poller, TimerFd timer,
                               std::vector<std::unique_ptr<Nic>> nics)
    : settings_(options.settings),
      poller_(std::move(poller)),
      timer_(std::move(timer)),
      nics_(std::move(nics)),
      registry_(options.settings),
      regions_([this] { RunCommands(); }, [this](LocalRegion& region) { OnRegionEnded(region); }) {}

Status VerbsTransport::Watch() {
  WC_RETURN_IF_ERROR(poller_.Add(registry_.commands().wake_fd(), EPOLLIN, 0));
  WC_RETURN_IF_ERROR(poller_.Add(timer_.fd(), EPOLLIN, 0));
  for (const auto& nic : nics_) {
    WC_RETURN_IF_ERROR(poller_.Add(nic->completions().fd(), EPOLLIN, 0));
    WC_RETURN_IF_ERROR(poller_.Add(nic->device().event_fd(), EPOLLIN, 0));
  }
  return Status::Ok();
}

VerbsTransport::~VerbsTransport() {
  for (auto& [id, link] : links_) {
    link->EndBroken();
    link->Close();
    closing_links_.push_back({std::move(link), TimePoint{}});
  }
  const TimePoint limit = Clock::now() + kLastCloseGrace;
  while (Clock::now() < limit && std::ranges::any_of(closing_links_, [](const ClosingLink& closing) {
           return !closing.link->gone();
         })) {
    for (const auto& nic : nics_) nic->Poll();
    for (const ClosingLink& closing : closing_links_) closing.link->EndBroken();
  }
  closing_links_.clear();
  links_.clear();
  RunCommands();
  regions_.ForEach([this](LocalRegion& region) { (void)registry_.TakeOut(region); });
  for (const auto& nic : nics_) {
    poller_.Remove(nic->completions().fd());
    poller_.Remove(nic->device().event_fd());
  }
}

Limits VerbsTransport::LimitsOf(MemoryKind) const { return {.max_length = kLongestOperation}; }

// --- Memory

Result<std::string> VerbsTransport::Register(const RegionName& name, const DescribedMemory& memory,
                                             Access access) {
  return registry_.Register(name, memory, access);
}

void VerbsTransport::OnRegionEnded(LocalRegion& region) {
  if (const auto out = registry_.TakeOut(region)) Run(*out);
}

void VerbsTransport::Run(const RegionOut& out) {
  for (const auto& kept : out.kept) nics_[kept.nic]->device().Die(kept.why);
  if (!out.kept.empty()) return held_regions_.push_back(out.id);
  EndRegion(out.id);
}

void VerbsTransport::EndRegion(uint32_t id) {
  registry_.FreeRegion(id);
  events_.Push(Deregistered{id});
}

void VerbsTransport::EndHeldRegions() {
  const auto reachable = [](const auto& nic) { return nic->device().dead() && nic->reachable(); };
  if (held_regions_.empty() || std::ranges::any_of(nics_, reachable)) return;
  for (const uint32_t id : std::exchange(held_regions_, {})) EndRegion(id);
}

// --- Links

Result<std::string> VerbsTransport::OpenLink(LinkId link, Role role, Incarnation peer, std::string_view offer,
                                             TimePoint deadline) {
  RunCommands();
  LookAtNics();
  WC_RETURN_IF_ERROR(CheckFree(link));
  auto opened = std::make_unique<Link>(
      Shared{settings_, regions_, events_, moved_, next_step_, touched_}, nics_,
      LinkTerms{
          .id = link, .role = role, .deadline = deadline, .lanes = static_cast<uint32_t>(settings_.lanes)});
  WC_ASSIGN_OR_RETURN(std::string blob,
                      role == Role::kInitiator ? opened->MakeOffer() : opened->MakeAnswer(offer));
  links_[link] = std::move(opened);
  registry_.OpenLink(link, peer);
  next_step_ = TimePoint{};
  return blob;
}

Status VerbsTransport::Establish(LinkId link, std::string_view answer) {
  Link* found = Find(link);
  return found == nullptr ? NoSuchLink(link) : found->Establish(answer);
}

void VerbsTransport::CloseLink(LinkId link) {
  RunCommands();
  if (const auto found = links_.find(link); found != links_.end()) {
    found->second->Close();
    closing_links_.push_back({std::move(found->second), Clock::now() + kCloseGrace});
    links_.erase(found);
    registry_.CloseLink(link);
    next_step_ = TimePoint{};
  }
  events_.Push(LinkClosed{link});
}

// --- Progress

Transport::Progressed VerbsTransport::Progress(std::span<Event> out) {
  moved_ = false;
  if (events_.size() < out.size()) {
    RunCommands();
    // First what is there: an answer that waits is no answer that is late.
    PollNics();
    if (next_step_ != TimePoint::max()) StepTimers();
    if (turns_++ % kTurns == 0 || !held_regions_.empty()) LookAtNics();
    ContinueLinks();
    EndHeldRegions();
  }
  return {.events = events_.Take(out), .moved = moved_};
}

void VerbsTransport::PollNics() {
  for (const auto& nic : nics_) {
    for (uint32_t turn = 0; turn < kPolls && !events_.full() && nic->Poll(); ++turn) {
    }
  }
  if (!closing_links_.empty()) EndClosing(Clock::now());
}

void VerbsTransport::ContinueLinks() {
  if (touched_.empty()) return;
  std::swap(touched_, touched_now_);
  for (const LinkId id : touched_now_) {
    if (Link* link = Find(id); link != nullptr) link->Continue();
  }
  touched_now_.clear();
}

void VerbsTransport::LookAtNics() {
  for (const auto& nic : nics_) {
    if (!nic->LookAtEvents()) continue;
    // Those of a device that was removed are ready for ever. The second one tells that it was.
    if (nic->device().dead()) poller_.Remove(nic->completions().fd());
    if (nic->device().removed()) poller_.Remove(nic->device().event_fd());
    for (const auto& [id, link] : links_) link->OnNicChanged(*nic);
  }
}

void VerbsTransport::StepTimers() {
  const TimePoint now = Clock::now();
  if (now < next_step_) return;
  EndClosing(now);
  for (const auto& [id, link] : links_) link->Step(now);
  next_step_ = NextStep();
}

void VerbsTransport::EndClosing(TimePoint now) {
  for (const ClosingLink& closing : closing_links_) closing.link->EndBroken();
  std::erase_if(closing_links_, [now](const ClosingLink& closing) {
    return closing.link->gone() || now >= closing.deadline;
  });
}

TimePoint VerbsTransport::NextStep() const {
  TimePoint next = TimePoint::max();
  for (const ClosingLink& closing : closing_links_) next = std::min(next, closing.deadline);
  for (const auto& [id, link] : links_) next = std::min(next, link->NextStep());
  return next;
}

// --- Sleeping

bool VerbsTransport::Arm() {
  if (!events_.empty() || !touched_.empty()) return false;
  for (const auto& nic : nics_) {
    if (!nic->device().dead()) {
      const Status armed = nic->completions().Arm();
      if (!armed.ok()) WC_LOG(kDebug, armed.message());
      if (!armed.ok() && nic->up()) return false;  // Nobody would wake us.
      // What came before it was armed gives no event.
      if (armed.ok() && nic->Poll()) return false;
    }
    if (nic->changed()) {
      turns_ = 0;
      return false;
    }
  }
  if (!events_.empty() || !touched_.empty()) return false;
  return timer_.Set(NextStep()) && registry_.commands().Arm();
}

void VerbsTransport::Disarm() {
  registry_.commands().Disarm();
  for (const auto& nic : nics_) nic->completions().Disarm();
  turns_ = 0;  // The next turn looks at the devices' events.
}

}  // namespace verbs
}  // namespace weightcast::transport
