#include "transport/shm/region_requests.h"

#include <fcntl.h>

#include "base/log.h"
#include "base/strings.h"

namespace weightcast::transport::shm {
namespace {

/// Requests under way on one link: neither side's socket buffer can fill up with them.
constexpr size_t kMostAsked = 64;

/// The same memory, for mapping it without the right to write. Invalid where /proc is not mounted.
UniqueFd ReadOnly(int fd) {
  return UniqueFd(open(StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace

void RegionRequests::Import(PeerRegion& region) {
  if (region.state != PeerRegion::State::kWaiting || link_.state == LinkParts::State::kOpening) return;
  if (link_.state != LinkParts::State::kReady || region.name.owner != link_.peer) {
    region.state = PeerRegion::State::kFailed;
    region.failure = link_.state != LinkParts::State::kReady ? Code::kUnavailable : Code::kPermission;
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
  Ask();
}

void RegionRequests::Ask() {
  while (asking_ < kMostAsked && !unasked_.empty()) {
    const auto [id, generation] = unasked_.front();
    // An error of the socket is told by its hang-up.
    if (!link_.channel.Send(Encode(WantRegion{.id = id, .generation = generation})).ok()) return;
    unasked_.pop_front();
    ++asking_;
  }
}

Status RegionRequests::On(const WantRegion& request) {
  RegionReply reply{.id = request.id, .generation = request.generation, .code = Code::kPermission};
  const LocalRegion* region = link_.context.regions.Find(request.id, request.generation);
  if (region == nullptr || region->access == Access::kLocal || region->device != nullptr)
    return link_.channel.Send(Encode(reply));
  const UniqueFd read_only =
      PeersWrite(region->access, /*granted=*/true) ? UniqueFd() : ReadOnly(region->fd.get());
  const int fd = PeersWrite(region->access, /*granted=*/true) ? region->fd.get() : read_only.get();
  if (fd < 0) {
    reply.code = Code::kUnavailable;
    return link_.channel.Send(Encode(reply));
  }
  reply.code = Code::kOk;
  reply.fd_offset = region->fd_offset;
  reply.length = region->length;
  return link_.channel.Send(Encode(reply), std::array{fd});
}

Status RegionRequests::On(const RegionReply& reply, std::span<const UniqueFd> fds) {
  const RegionId id{reply.id, reply.generation};
  const auto wanted = wanted_.extract(id);
  if (wanted.empty() || asking_ == 0) return {Code::kProtocol, "it sent a region that was not asked for"};
  --asking_;
  Ask();
  std::erase_if(mappings_, [](const auto& known) { return known.second.expired(); });
  for (const RemoteRegion waiting : wanted.mapped()) {
    PeerRegion* const region = link_.context.peer_regions.Find(link_.id, waiting);
    const bool same = region != nullptr && RegionId{region->name.id, region->name.generation} == id;
    if (!same || region->state != PeerRegion::State::kWaiting) continue;  // Released since.
    if (reply.code == Code::kPermission) {                                // Deregistered since.
      region->state = PeerRegion::State::kFailed;
      region->failure = Code::kPermission;
      continue;
    }
    region->mapping = Map(*region, reply, fds);
    if (region->mapping == nullptr) {
      TakeOtherPath(*region);
    } else {
      region->state = PeerRegion::State::kReady;
    }
  }
  return Status::Ok();
}

std::shared_ptr<PeerMapping> RegionRequests::Map(const PeerRegion& region, const RegionReply& reply,
                                                 std::span<const UniqueFd> fds) {
  auto& known = mappings_[{reply.id, reply.generation}];
  if (auto mapping = known.lock(); mapping != nullptr) {
    return mapping->size() >= region.length ? mapping : nullptr;
  }
  if (reply.code != Code::kOk || fds.size() != 1 || reply.length < region.key.length) return nullptr;
  const bool writable = PeersWrite(region.key.access, /*granted=*/true);
  auto made = MapPeer(fds[0].get(), reply.fd_offset, region.key.length, writable);
  if (!made.ok()) {
    WC_LOG(kDebug, "region of ", link_.PeerName(), " not mapped: ", made.status().message());
    return nullptr;
  }
  auto mapping = std::make_shared<PeerMapping>(std::move(made).value(), writable);
  known = mapping;
  return mapping;
}

void RegionRequests::TakeOtherPath(PeerRegion& region) {
  region.key.mappable = false;
  const bool copies = (link_.paths.copy_writes || !PeersWrite(region.key.access, /*granted=*/true)) &&
                      (link_.paths.copy_reads || !PeersRead(region.key.access));
  if (!copies) {
    link_.paths.ring_wanted = true;
    if (link_.paths.ring_failure != Code::kOk) {
      region.state = PeerRegion::State::kFailed;
      region.failure = link_.paths.ring_failure;
      return;
    }
    if (!link_.paths.ring_ready) return;
  }
  region.state = PeerRegion::State::kReady;
}

Status RegionRequests::Step() {
  if (!link_.paths.ring_wanted || ring_sent_) return Status::Ok();
  WarnOfRing();
  return SendRing();
}

void RegionRequests::WarnOfRing() {
  if (link_.context.cross_copies == CrossCopies::kOff) return;
  WC_LOG(
      kWarning, "shm to ", link_.PeerName(), ": cross-process copy refused (", link_.paths.refusal,
      "); memory that is not from weightcast::Allocate is copied twice, through a ring. Allow processes of ",
      "one user to trace each other (sysctl kernel.yama.ptrace_scope=0, seccomp profile, one pid namespace)");
}

Status RegionRequests::SendRing() {
  ring_sent_ = true;
  link_.paths.ring_wanted = true;
  const auto fd = link_.inbox.EnsurePayload();
  if (!fd.ok()) {
    WC_LOG(kWarning, "shm to ", link_.PeerName(), ": ", fd.status().message(),
           "; until then memory that is not from weightcast::Allocate cannot be sent to it this way");
    link_.paths.ring_failure = fd.status().code();
    SettleRing();
    return link_.channel.Send(Encode(RingReply{.code = fd.status().code()}));
  }
  const Status sent = link_.channel.Send(Encode(RingReply{.code = Code::kOk}), std::array{*fd});
  link_.inbox.ClosePayloadFd();
  SettleRing();
  return sent;
}

Status RegionRequests::On(const RingReply& reply, std::span<const UniqueFd> fds) {
  if (link_.outbox->has_payload()) return {Code::kProtocol, "it sent a second payload ring"};
  if (reply.code != Code::kOk) {
    link_.paths.ring_failure = reply.code;
  } else if (fds.size() != 1) {
    return {Code::kProtocol, "it sent a payload ring without its descriptor"};
  } else {
    WC_ASSIGN_OR_RETURN(auto payload, MapPeer(fds[0].get(), 0, kPayloadBytes, /*writable=*/true));
    link_.outbox->AttachPayload(std::move(payload));
  }
  if (!ring_sent_) WC_RETURN_IF_ERROR(SendRing());
  SettleRing();
  return Status::Ok();
}

void RegionRequests::SettleRing() {
  link_.paths.ring_ready = link_.inbox.has_payload() && link_.outbox->has_payload();
  if (!link_.paths.ring_ready && link_.paths.ring_failure == Code::kOk) return;
  link_.context.peer_regions.ForEach(link_.id, [this](PeerRegion& region) {
    if (region.state == PeerRegion::State::kWaiting && !region.key.mappable) TakeOtherPath(region);
  });
}

}  // namespace weightcast::transport::shm
