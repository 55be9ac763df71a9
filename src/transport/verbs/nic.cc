#include "transport/verbs/nic.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "topology/device_file.h"
#include "topology/gid.h"
#include "topology/pkey.h"

namespace weightcast::transport::verbs {
namespace {

/// Of one completion queue: enough for hundreds of queue pairs.
constexpr uint32_t kCompletions = 16384;
/// Reads of one peer that are served at once, where the device can more.
constexpr int kReads = 16;
/// In the id of a receive; no send has it.
constexpr uint64_t kReceiveId = uint64_t{1} << 63;

bool SetNonBlocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

/// What became of a work request that failed, for whoever posted it.
Code CodeOf(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_REM_ACCESS_ERR:
      return Code::kPermission;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
      return Code::kInternal;
    default:
      return Code::kUnavailable;
  }
}

}  // namespace

Result<std::unique_ptr<Nic>> Nic::Open(std::shared_ptr<Ibverbs> api, ibv_device* device, uint8_t port,
                                       uint8_t index, const Settings& settings) {
  std::unique_ptr<Nic> nic(new Nic(std::move(api), port, index));
  WC_RETURN_IF_ERROR(nic->Init(device, settings));
  return nic;
}

Status Nic::Init(ibv_device* device, const Settings& settings) {
  gid_setting_ = settings.gid_index;
  pkey_setting_ = settings.pkey;
  name_ = device->name;
  context_ = api_->OpenDevice(device);
  if (context_ == nullptr)
    return {Code::kUnavailable, StrCat(name_, ": ", topology::ReasonNotOpened(*device, errno))};
  if (const int error = api_->QueryDevice(context_, &limits_); error != 0) {
    return {Code::kUnavailable, StrCat(name_, ": cannot query the device: ", ErrnoText(error),
                                       "; check its driver with ibv_devinfo")};
  }
  if (limits_.phys_port_cnt > 1) name_ += StrCat(":", static_cast<int>(port_));
  if (!SetNonBlocking(context_->async_fd)) {
    return {Code::kUnavailable, StrCat(name_, ": cannot set up its event descriptor: ", ErrnoText(errno),
                                       "; check its driver with ibv_devinfo")};
  }
  WC_RETURN_IF_ERROR(MakeQueues());
  FindAddress();
  if (!up_) WC_LOG(kDebug, why_down_.message());
  told_ = state();
  return Status::Ok();
}

Status Nic::MakeQueues() {
  const auto failed = [this](std::string_view what) {
    const int error = errno;
    if (error == ENOMEM || error == EAGAIN)
      return Status(Code::kExhausted, StrCat(name_, ": cannot make ", what, ": ", ErrnoText(error),
                                             "; raise the limit of locked memory (ulimit -l)"));
    return Status(Code::kExhausted, StrCat(name_, ": cannot make ", what, ": ", ErrnoText(error),
                                           "; check its driver with ibv_devinfo and dmesg"));
  };
  domain_ = api_->AllocPd(context_);
  if (domain_ == nullptr) return failed("a protection domain");
  channel_ = api_->CreateCompChannel(context_);
  if (channel_ == nullptr || !SetNonBlocking(channel_->fd)) return failed("a completion channel");
  const uint32_t entries = std::min(kCompletions, static_cast<uint32_t>(std::max(limits_.max_cqe, 0)));
  const uint32_t posted =
      std::min({kReceives, static_cast<uint32_t>(std::max(limits_.max_srq_wr, 0)), entries / 2});
  if (posted == 0) {
    return {Code::kUnavailable,
            StrCat(name_, ": its queues are too short: ", limits_.max_srq_wr, " receives, ", entries,
                   " completions; leave it out by the setting nics")};
  }
  completions_ = api_->CreateCq(context_, static_cast<int>(entries), channel_);
  if (completions_ == nullptr) return failed("a completion queue");
  room_ = entries - posted;
  ibv_srq_init_attr attr{};
  attr.attr.max_wr = posted;
  attr.attr.max_sge = 1;
  receives_ = api_->CreateSrq(domain_, &attr);
  if (receives_ == nullptr) return failed("a shared receive queue");
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = (posted * sizeof(Buffer) + page - 1) / page * page;
  buffers_.reset(static_cast<Buffer*>(std::aligned_alloc(page, bytes)));
  if (buffers_ == nullptr) return failed("receive buffers");
  buffers_region_ = api_->RegMr(domain_, buffers_.get(), bytes, IBV_ACCESS_LOCAL_WRITE);
  if (buffers_region_ == nullptr) return failed("receive buffers");
  receive_requests_.resize(posted);
  receive_places_.resize(posted);
  for (uint32_t i = 0; i < posted; ++i) free_buffers_.push_back(i);
  return PostReceives(posted);
}

Nic::~Nic() {
  if (receives_ != nullptr) api_->DestroySrq(receives_);
  if (buffers_region_ != nullptr) api_->DeregMr(buffers_region_);
  if (completions_ != nullptr) api_->DestroyCq(completions_);
  if (channel_ != nullptr) api_->DestroyCompChannel(channel_);
  if (domain_ != nullptr) api_->DeallocPd(domain_);
  if (context_ != nullptr) api_->CloseDevice(context_);
}

void Nic::FindAddress() {
  why_down_ = ReadAddress();
  up_ = why_down_.ok();
}

Status Nic::ReadAddress() {
  ibv_port_attr attr{};
  if (const int error = api_->QueryPort(context_, port_, &attr); error != 0) {
    return {Code::kUnavailable, StrCat(name_, ": cannot query port ", static_cast<int>(port_), ": ",
                                       ErrnoText(error), "; check its driver with ibv_devinfo")};
  }
  if (attr.state != IBV_PORT_ACTIVE) {
    return {Code::kUnavailable,
            StrCat(name_, ": port ", static_cast<int>(port_), " is not up; check cable and switch")};
  }
  Address found;
  found.infiniband = attr.link_layer != IBV_LINK_LAYER_ETHERNET;
  found.mtu = static_cast<uint8_t>(attr.active_mtu);
  found.lid = attr.lid;
  found.grh = found.infiniband && (attr.flags & IBV_QPF_GRH_REQUIRED) != 0;
  found.reads = static_cast<uint8_t>(std::clamp(limits_.max_qp_rd_atom, 1, kReads));
  auto gid = topology::ChooseGid(*api_, context_, port_, attr, gid_setting_);
  if (!gid.ok()) return {gid.status().code(), StrCat(name_, ": ", gid.status().message())};
  found.gid = gid->gid;
  found.subnet_bits = gid->subnet_bits;
  const auto pkey = topology::ChoosePkey(*api_, context_, port_, attr, pkey_setting_);
  if (!pkey.ok()) return {pkey.status().code(), StrCat(name_, ": ", pkey.status().message())};
  found.pkey = pkey->key;
  gid_index_ = gid->index;
  pkey_index_ = pkey->index;
  address_ = found;
  return Status::Ok();
}

// --- Memory

Result<ibv_mr*> Nic::RegisterMemory(std::byte* base, uint64_t length, int access) const {
  ibv_mr* region = api_->RegMr(domain_, base, length, access);
  // Memory that may only be read, a mapped file for instance, is a source all the same.
  if (region == nullptr && (errno == EFAULT || errno == EACCES || errno == EPERM) &&
      (access & IBV_ACCESS_REMOTE_WRITE) == 0) {
    region = api_->RegMr(domain_, base, length, access & ~IBV_ACCESS_LOCAL_WRITE);
  }
  if (region != nullptr) return region;
  const int error = errno;
  if (error == ENOMEM || error == EAGAIN) {
    return Status(
        Code::kExhausted,
        StrCat(name_, " cannot pin ", HumanBytes(static_cast<double>(length)), ": ", ErrnoText(error),
               "; raise the limit of locked memory (`ulimit -l unlimited`, LimitMEMLOCK=infinity in a "
               "unit, --ulimit memlock=-1 in a container), or register less: at most ",
               limits_.max_mr, " regions"));
  }
  return Status(
      error == EOPNOTSUPP ? Code::kUnavailable : Code::kInvalidArgument,
      StrCat(name_, " cannot register ", HumanBytes(static_cast<double>(length)), ": ", ErrnoText(error),
             "; give memory that is allocated, or leave ", name_, " out by the setting nics"));
}

Result<ibv_mr*> Nic::RegisterDeviceMemory(std::byte* base, uint64_t length, int access, int buffer,
                                          uint64_t offset, std::string_view why_none) const {
  std::string why(why_none);
  if (buffer >= 0) {
    ibv_mr* const region =
        api_->RegDmabufMr(domain_, offset, length, reinterpret_cast<uint64_t>(base), buffer, access);
    if (region != nullptr) return region;
    why = ErrnoText(errno);
  }
  if (ibv_mr* const region = api_->RegMr(domain_, base, length, access); region != nullptr) return region;
  return Status(Code::kUnavailable,
                StrCat(name_, " cannot register ", HumanBytes(static_cast<double>(length)),
                       " of device memory: as a dma-buf: ", why, "; by its address: ", ErrnoText(errno),
                       "; the first needs NVIDIA's open kernel modules, Linux 5.12 and rdma-core 34, the "
                       "second the module nvidia-peermem; or leave ",
                       name_, " out by the setting nics"));
}

Status Nic::DeregisterMemory(ibv_mr* region) const {
  const int error = region == nullptr ? 0 : api_->DeregMr(region);
  if (error == 0) return Status::Ok();
  return {Code::kInternal,
          StrCat(name_, " did not deregister the ", HumanBytes(static_cast<double>(region->length)),
                 " of memory that were registered: ", ErrnoText(error),
                 "; do not free or reuse them before this process ends")};
}

// --- Queue pairs

uint32_t Nic::Attach(uint32_t queue_number) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  by_number_[queue_number] = nullptr;
  return slots_[index].generation << 16 | index;
}

void Nic::SetOwner(uint32_t queue_number, uint32_t id, QueueOwner& owner) {
  slots_[id & 0xffff].owner = &owner;
  by_number_[queue_number] = &owner;
}

void Nic::Detach(uint32_t queue_number, uint32_t id, uint32_t taken) {
  Slot& slot = slots_[id & 0xffff];
  slot.owner = nullptr;
  slot.generation = (slot.generation + 1) & 0x7fff;  // The id's top bit tells receives.
  free_slots_.push_back(id & 0xffff);
  by_number_.erase(queue_number);
  stale_ += taken;
}

// --- Progress

bool Nic::Poll() {
  const uint32_t stale = stale_;
  const int count = api_->PollCq(completions_, kPollBatch, polled_.data());
  if (count < 0) Die(StrCat(name_, ": its completion queue cannot be polled"));
  polling_ = true;
  for (int i = 0; i < count; ++i) Dispatch(polled_[static_cast<size_t>(i)]);
  polling_ = false;
  if (count < kPollBatch && stale > 0) {  // The queue was empty after they had gone.
    room_ += stale;
    stale_ -= stale;
  }
  if (!free_buffers_.empty() && !dead_) {
    if (const Status posted = PostReceives(static_cast<uint32_t>(free_buffers_.size())); !posted.ok()) {
      Die(posted.message());
    }
  }
  return count > 0;
}

void Nic::Drain() {
  // Bounded: others' completions go on coming.
  for (uint32_t turn = 0; turn < kCompletions / kPollBatch && !polling_ && !dead(); ++turn) {
    if (!Poll()) return;
  }
}

QueueOwner* Nic::OwnerOf(const ibv_wc& completion) const {
  const auto id = static_cast<uint32_t>(completion.wr_id >> 32);
  const Slot& slot = slots_[id & 0xffff];
  return slot.generation == id >> 16 ? slot.owner : nullptr;
}

void Nic::Dispatch(const ibv_wc& completion) {
  if ((completion.wr_id & kReceiveId) != 0) return OnReceived(completion);
  QueueOwner* const owner = OwnerOf(completion);
  if (owner == nullptr) return;  // Its queue pair is gone.
  const auto sequence = static_cast<uint32_t>(completion.wr_id);
  if (completion.status == IBV_WC_SUCCESS) return owner->OnSent(sequence);
  owner->OnSendError(sequence, CodeOf(completion.status),
                     StrCat(name_, ": ", api_->StatusText(completion.status),
                            "; check that the peer runs, and the ports of both with ibv_devinfo"));
}

void Nic::OnReceived(const ibv_wc& completion) {
  const auto index = static_cast<uint32_t>(completion.wr_id & ~kReceiveId);
  free_buffers_.push_back(index);
  const auto found = by_number_.find(completion.qp_num);
  if (found == by_number_.end() || found->second == nullptr || completion.status != IBV_WC_SUCCESS) return;
  QueueOwner* const owner = found->second;
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) return owner->OnImmediate(ntohl(completion.imm_data));
  owner->OnMessage({buffers_[index].data(), std::min<size_t>(completion.byte_len, kMaxMessage)});
}

/// Of the last ones in free_buffers_.
Status Nic::PostReceives(uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t buffer = free_buffers_[free_buffers_.size() - 1 - i];
    receive_places_[i] = {.addr = reinterpret_cast<uint64_t>(buffers_[buffer].data()),
                          .length = kMaxMessage,
                          .lkey = buffers_region_->lkey};
    receive_requests_[i] = {.wr_id = kReceiveId | buffer,
                            .next = i + 1 < count ? &receive_requests_[i + 1] : nullptr,
                            .sg_list = &receive_places_[i],
                            .num_sge = 1};
  }
  ibv_recv_wr* bad = nullptr;
  if (const int error = api_->PostSrqRecv(receives_, receive_requests_.data(), &bad); error != 0) {
    return {Code::kUnavailable, StrCat(name_, ": cannot post receives: ", ErrnoText(error),
                                       "; check its driver with ibv_devinfo")};
  }
  free_buffers_.resize(free_buffers_.size() - count);
  return Status::Ok();
}

void Nic::Die(std::string_view reason) {
  if (dead_.exchange(true)) return;
  why_down_ = {
      Code::kUnavailable,
      StrCat(reason,
             "; this process does not use the device any more: start the process again once it works")};
  WC_LOG(kError, "verbs: ", why_down_.message());
}

bool Nic::LookAtEvents() {
  ibv_async_event event{};
  while (api_->GetAsyncEvent(context_, &event) == 0) {
    // Acknowledged first: a queue pair with an event that is not cannot be destroyed.
    const ibv_async_event copy = event;
    api_->AckAsyncEvent(&event);
    OnEvent(copy);
  }
  if (errno == EIO && !std::exchange(removed_, true)) Die(StrCat(name_, ": the device was removed"));
  return state() != std::exchange(told_, state());
}

void Nic::OnEvent(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE: {
      if (event.element.port_num != port_ || dead()) return;
      const bool was_up = up();
      FindAddress();
      lost_peers_.Clear();
      if (was_up && !up()) WC_LOG(kWarning, "verbs: ", why_down_.message(), "; going on without it");
      if (!was_up && up()) WC_LOG(kInfo, "verbs: ", name_, " is up again");
      return;
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR: {
      const auto found = by_number_.find(event.element.qp->qp_num);
      if (found == by_number_.end() || found->second == nullptr) return;
      found->second->OnBroken({Code::kUnavailable, StrCat(name_, ": ", api_->EventText(event.event_type),
                                                          "; check it with ibv_devinfo")});
      return;
    }
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
      return Die(StrCat(name_, ": ", api_->EventText(event.event_type)));
    default:
      return;  // Nothing that changes what we do.
  }
}

Status Nic::Arm() const {
  if (const int error = api_->ReqNotifyCq(completions_, false); error != 0) {
    return {Code::kUnavailable, StrCat(name_, ": cannot ask for events: ", ErrnoText(error),
                                       "; check its driver with ibv_devinfo")};
  }
  return Status::Ok();
}

void Nic::Disarm() const {
  ibv_cq* queue = nullptr;
  unsigned int events = 0;
  while (api_->GetCqEvent(channel_, &queue) == 0) ++events;
  if (events > 0) api_->AckCqEvents(completions_, events);
}

}  // namespace weightcast::transport::verbs
