#include <fcntl.h>

#include "base/log.h"
#include "base/strings.h"
#include "transport/shm/link.h"

/// What is asked for over the socket once a link is ready: descriptors of regions, and the payload rings.
namespace weightcast::transport::shm {
namespace {

/// Requests under way on one link: neither side's socket buffer can fill up with them.
constexpr size_t kMostAsked = 64;

/// The same memory, for mapping it without the right to write. Invalid where /proc is not mounted.
UniqueFd ReadOnly(int fd) {
  return UniqueFd(open(StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace

void Link::Import(PeerRegion& region) {
  if (region.state != PeerRegion::State::kWaiting || state_ == State::kOpening) return;
  if (state_ != State::kReady || region.name.owner != peer_) {
    region.state = PeerRegion::State::kFailed;
    region.failure = state_ != State::kReady ? Code::kUnavailable : Code::kPermission;
    return;
  }
  if (region.key.kind == MemoryKind::kDevice) {  // What it takes is found out by the first operation.
    region.state = PeerRegion::State::kReady;
    return;
  }
  if (!region.key.mappable) return TakeOtherPath(region);
  const RegionId id{region.name.id, region.name.generation};
  if (const auto found = mappings_.find(id); found != mappings_.end()) {
    if (auto mapping = found->second.lock(); mapping != nullptr && mapping->size() >= region.length) {
      region.mapping = std::move(mapping);
      region.state = PeerRegion::State::kReady;
      return;
    }
  }
  const auto [wanted, first] = wanted_.try_emplace(id);
  wanted->second.push_back(region.id);
  if (first) unasked_.push_back(id);
  AskForRegions();
}

void Link::AskForRegions() {
  while (asking_ < kMostAsked && !unasked_.empty()) {
    const auto [id, generation] = unasked_.front();
    // An error of the socket is told by its hang-up.
    if (!channel_.Send(Encode(WantRegion{.id = id, .generation = generation})).ok()) return;
    unasked_.pop_front();
    ++asking_;
  }
}

Status Link::OnWantRegion(const WantRegion& request) {
  RegionReply reply{.id = request.id, .generation = request.generation, .code = Code::kPermission};
  const LocalRegion* region = context_->regions.Find(request.id, request.generation);
  if (region == nullptr || region->access == Access::kLocal || region->device != nullptr)
    return channel_.Send(Encode(reply));
  const UniqueFd read_only = PeersWrite(region->access) ? UniqueFd() : ReadOnly(region->fd.get());
  const int fd = PeersWrite(region->access) ? region->fd.get() : read_only.get();
  if (fd < 0) {
    reply.code = Code::kUnavailable;
    return channel_.Send(Encode(reply));
  }
  reply.code = Code::kOk;
  reply.fd_offset = region->fd_offset;
  reply.length = region->length;
  return channel_.Send(Encode(reply), std::array{fd});
}

Status Link::OnRegion(const RegionReply& reply, std::span<const UniqueFd> fds) {
  const RegionId id{reply.id, reply.generation};
  const auto wanted = wanted_.extract(id);
  if (wanted.empty() || asking_ == 0) return {Code::kProtocol, "it sent a region that was not asked for"};
  --asking_;
  AskForRegions();
  std::erase_if(mappings_, [](const auto& known) { return known.second.expired(); });
  for (const RemoteRegion waiting : wanted.mapped()) {
    PeerRegion* const region = context_->peer_regions.Find(id_, waiting);
    const bool same = region != nullptr && RegionId{region->name.id, region->name.generation} == id;
    if (!same || region->state != PeerRegion::State::kWaiting) continue;  // Released since.
    if (reply.code == Code::kPermission) {                                // Deregistered since.
      region->state = PeerRegion::State::kFailed;
      region->failure = Code::kPermission;
      continue;
    }
    region->mapping = MapRegion(*region, reply, fds);
    if (region->mapping == nullptr) {
      TakeOtherPath(*region);
    } else {
      region->state = PeerRegion::State::kReady;
    }
  }
  return Status::Ok();
}

std::shared_ptr<PeerMapping> Link::MapRegion(const PeerRegion& region, const RegionReply& reply,
                                             std::span<const UniqueFd> fds) {
  auto& known = mappings_[{reply.id, reply.generation}];
  if (auto mapping = known.lock(); mapping != nullptr) {
    return mapping->size() >= region.length ? mapping : nullptr;
  }
  if (reply.code != Code::kOk || fds.size() != 1 || reply.length < region.key.length) return nullptr;
  const bool writable = PeersWrite(region.key.access);
  auto made = MapPeer(fds[0].get(), reply.fd_offset, region.key.length, writable);
  if (!made.ok()) {
    WC_LOG(kDebug, "region of ", PeerName(), " not mapped: ", made.status().message());
    return nullptr;
  }
  auto mapping = std::make_shared<PeerMapping>(std::move(made).value(), writable);
  known = mapping;
  return mapping;
}

void Link::TakeOtherPath(PeerRegion& region) {
  region.key.mappable = false;
  const bool copies = (paths_.copy_writes || !PeersWrite(region.key.access)) &&
                      (paths_.copy_reads || !PeersRead(region.key.access));
  if (!copies) {
    paths_.ring_wanted = true;
    if (paths_.ring_failure != Code::kOk) {
      region.state = PeerRegion::State::kFailed;
      region.failure = paths_.ring_failure;
      return;
    }
    if (!paths_.ring_ready) return;
  }
  region.state = PeerRegion::State::kReady;
}

void Link::WarnOfRing() {
  if (!context_->cross_copy) return;
  WC_LOG(
      kWarning, "shm to ", PeerName(), ": cross-process copy refused (", paths_.refusal,
      "); memory that is not from weightcast::Allocate is copied twice, through a ring. Allow processes of ",
      "one user to trace each other (sysctl kernel.yama.ptrace_scope=0, seccomp profile, one pid namespace)");
}

Status Link::SendRing() {
  ring_sent_ = true;
  paths_.ring_wanted = true;
  const auto fd = inbox_.EnsurePayload();
  if (!fd.ok()) {
    WC_LOG(kWarning, "shm to ", PeerName(), ": ", fd.status().message(),
           "; until then memory that is not from weightcast::Allocate cannot be sent to it this way");
    paths_.ring_failure = fd.status().code();
    SettleRing();
    return channel_.Send(Encode(RingReply{.code = fd.status().code()}));
  }
  const Status sent = channel_.Send(Encode(RingReply{.code = Code::kOk}), std::array{*fd});
  inbox_.ClosePayloadFd();
  SettleRing();
  return sent;
}

Status Link::OnRing(const RingReply& reply, std::span<const UniqueFd> fds) {
  if (outbox_->has_payload()) return {Code::kProtocol, "it sent a second payload ring"};
  if (reply.code != Code::kOk) {
    paths_.ring_failure = reply.code;
  } else if (fds.size() != 1) {
    return {Code::kProtocol, "it sent a payload ring without its descriptor"};
  } else {
    WC_ASSIGN_OR_RETURN(auto payload, MapPeer(fds[0].get(), 0, kPayloadBytes, /*writable=*/true));
    outbox_->AttachPayload(std::move(payload));
  }
  if (!ring_sent_) WC_RETURN_IF_ERROR(SendRing());
  SettleRing();
  return Status::Ok();
}

void Link::SettleRing() {
  paths_.ring_ready = inbox_.has_payload() && outbox_->has_payload();
  if (!paths_.ring_ready && paths_.ring_failure == Code::kOk) return;
  context_->peer_regions.ForEach(id_, [this](PeerRegion& region) {
    if (region.state == PeerRegion::State::kWaiting && !region.key.mappable) TakeOtherPath(region);
  });
}

}  // namespace weightcast::transport::shm
