#include "transport/shm/shm_transport.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <limits>

#include "base/advice.h"
#include "base/process.h"
#include "base/strings.h"
#include "transport/other_release.h"
#include "transport/shm/cross_copy.h"
#include "transport/shm/factory.h"

namespace weightcast::transport {

Result<std::unique_ptr<Transport>> CreateShmTransport(const TransportOptions& options) {
  return shm::ShmTransport::Create(options);
}

namespace shm {

Result<std::unique_ptr<Transport>> ShmTransport::Create(const TransportOptions& options, bool cross_copy,
                                                        Ptracer& ptracer) {
  WC_ASSIGN_OR_RETURN(auto poller, Poller::Create());
  WC_ASSIGN_OR_RETURN(auto fence, CreateShared(sizeof(FencePage), /*read_only_for_peers=*/true));
  WC_ASSIGN_OR_RETURN(auto wake, WakeFd::Create());
  UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer.valid()) return Status(Code::kExhausted, StrCat("cannot make a timer: ", ErrnoAndAdvice(errno)));
  WC_RETURN_IF_ERROR(poller.Add(wake.fd(), EPOLLIN, PollKey(PollKind::kWake, 0)));
  WC_RETURN_IF_ERROR(poller.Add(timer.get(), EPOLLIN, PollKey(PollKind::kTimer, 0)));
  WC_ASSIGN_OR_RETURN(auto acceptor, Acceptor::Create(poller));
  return std::unique_ptr<Transport>(new ShmTransport(options, cross_copy, ptracer, std::move(poller),
                                                     std::move(fence), std::move(wake), std::move(timer),
                                                     std::move(acceptor)));
}

ShmTransport::ShmTransport(const TransportOptions& options, bool cross_copy, Ptracer& ptracer, Poller poller,
                           SharedPages fence, WakeFd wake, UniqueFd timer, Acceptor acceptor)
    : process_(getpid()),
      settings_(options.settings),
      context_(options.self, cross_copy, ptracer, Ptracer::PolicyOf(settings_.ptracer), std::move(poller),
               std::move(fence), device::CopyOptions(settings_)),
      wake_(std::move(wake)),
      timer_(std::move(timer)),
      acceptor_(std::move(acceptor)),
      boot_id_(BootId()) {}

ShmTransport::~ShmTransport() {
  if (getpid() != process_) {
    // A child of a fork: the links and what watches them are the parent's.
    for (auto& [id, link] : links_) (void)link.release();
    return;
  }
  for (Link* link : order_) link->Close();
  // Memory is freed after this; a copy takes microseconds. A stopped peer is the caller's to have waited for.
  // Where devices copy, or have a peer's memory mapped, a busy machine may need longer to end that.
  const TimePoint limit = Clock::now() + (context_.devices() == nullptr ? std::chrono::milliseconds(100)
                                                                        : std::chrono::seconds(3));
  const auto all_closed = [this] {
    return std::all_of(order_.begin(), order_.end(), [](Link* link) {
      return link->closed() &&
             !link->devices().offers().Holds(kTrialRegion);  // The cell is ours to wait for.
    });
  };
  while ((!all_closed() || !departed_.empty()) && Clock::now() < limit) {
    Poll();
    Turn();
  }
}

Capability ShmTransport::Can(OpKind, MemoryKind local, MemoryKind remote) const {
  if (local == MemoryKind::kDevice || remote == MemoryKind::kDevice) {
    // Devices copy, and the target's processor has it done: nothing much is moved inside Post.
    return {.supported = true, .max_length = kLongestPull, .at_once = std::numeric_limits<uint64_t>::max()};
  }
  return {.supported = true, .max_length = std::numeric_limits<uint64_t>::max() / 2, .at_once = kAtOnceBytes};
}

Result<std::string> ShmTransport::Register(const RegionName& name, const DescribedMemory& memory,
                                           Access access) {
  if (memory.kind == MemoryKind::kHost) return context_.regions.Add(name, memory, access);
  WC_ASSIGN_OR_RETURN(DeviceSide* const devices, MakeDevices());
  WC_ASSIGN_OR_RETURN(auto region, devices->Describe(memory));
  return context_.regions.Add(name, memory, access, std::move(region));
}

Result<DeviceSide*> ShmTransport::MakeDevices() {
  const std::lock_guard lock(context_.devices_mutex);
  if (context_.devices_made == nullptr) {
    WC_ASSIGN_OR_RETURN(auto made, DeviceSide::Create(settings_));
    WC_RETURN_IF_ERROR(context_.poller.Add(made->signal().fd(), EPOLLIN, PollKey(PollKind::kDevice, 0)));
    context_.devices_made = std::move(made);
    context_.devices_seen.store(context_.devices_made.get(), std::memory_order_release);
  }
  return context_.devices_made.get();
}

void ShmTransport::Deregister(uint32_t region) {
  if (context_.regions.Remove(region)) WakeSleeper();
}

Result<RemoteRegion> ShmTransport::Import(LinkId link, const RegionName& name, uint64_t length,
                                          std::string_view key) {
  auto imported = context_.peer_regions.Add(link, name, length, key);
  if (imported.ok()) WakeSleeper();
  return imported;
}

void ShmTransport::Release(LinkId link, RemoteRegion region) {
  TakeChanges();
  context_.peer_regions.Erase(link, region);
}

Result<std::string> ShmTransport::OpenLink(LinkId link, Role role, Incarnation peer, std::string_view offer,
                                           TimePoint deadline) {
  if (static_cast<uint32_t>(link) == 0 || Find(link) != nullptr) {
    return Status(Code::kInvalidArgument,
                  StrCat("a link needs an id that is not 0 and not in use", kReportBug));
  }
  Invitation invitation;
  if (role == Role::kResponder) {
    WC_ASSIGN_OR_RETURN(invitation, DecodeInvitation(offer));
    if (invitation.boot_id != boot_id_)
      return Status(Code::kUnavailable,
                    "the peer is on another host, and shared memory is for one host; allow tcp or verbs by "
                    "the setting transport");
  }
  WC_ASSIGN_OR_RETURN(auto made, Link::Create(context_, link, peer, deadline));
  made->greeting().set_peer_cookie(invitation.cookie);
  const Invitation own{.boot_id = boot_id_,
                       .name = role == Role::kResponder ? acceptor_.name() : std::string(),
                       .cookie = made->greeting().cookie()};
  order_.push_back(made.get());
  links_.emplace(static_cast<uint32_t>(link), std::move(made));
  return Encode(own);
}

Status ShmTransport::Establish(LinkId link, std::string_view answer) {
  Link* const found = Find(link);
  if (found == nullptr)
    return {Code::kInvalidArgument,
            StrCat("shm: there is no link ", static_cast<uint32_t>(link), kReportBug)};
  WC_ASSIGN_OR_RETURN(const Invitation invitation, DecodeInvitation(answer));
  if (invitation.name.empty()) return OtherRelease("the peer's shm answer names no listener");
  found->Connect(invitation);
  return Status::Ok();
}

void ShmTransport::CloseLink(LinkId link) {
  Link* const found = Find(link);
  if (found != nullptr && found->state() != Link::State::kClosing) found->Close();
}

std::string ShmTransport::Describe(LinkId link) const {
  const Link* const found = Find(link);
  return found == nullptr ? "shm: no such link" : found->Describe();
}

Status ShmTransport::OpenGrant(LinkId link, const GrantName& grant, GrantReach ranges) {
  Link* const found = Find(link);
  if (found == nullptr)
    return {Code::kInvalidArgument,
            StrCat("shm: there is no link ", static_cast<uint32_t>(link), kReportBug)};
  return found->fences().OpenGrant(grant, std::move(ranges));
}

void ShmTransport::Revoke(LinkId link, const GrantName& grant) {
  Link* const found = Find(link);
  if (found == nullptr) {
    context_.events.Push(Revoked{.link = link, .grant = grant});
  } else {
    found->fences().Revoke(grant);
  }
}

size_t ShmTransport::Post(LinkId link, uint32_t lane, std::span<const Op> ops) {
  if (context_.peer_regions.pending()) TakeChanges();
  Link* const found = Find(link);
  return found == nullptr || lane != 0 ? 0 : found->Post(ops, posts_);
}

Link* ShmTransport::Find(LinkId link) const {
  const auto found = links_.find(static_cast<uint32_t>(link));
  return found == links_.end() ? nullptr : found->second.get();
}

void ShmTransport::WakeSleeper() {
  if (asleep_.load(std::memory_order_seq_cst) && asleep_.exchange(false)) wake_.Wake();
}

bool ShmTransport::has_fences() const {
  return !region_fences_.empty() || std::any_of(order_.begin(), order_.end(), [](Link* link) {
    return link->fences().has_revokes() || link->state() == Link::State::kClosing;
  });
}

}  // namespace shm
}  // namespace weightcast::transport
