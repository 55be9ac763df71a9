#include "transport/verbs/queue.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>

#include "base/random.h"
#include "base/strings.h"
#include "base/traffic_class.h"

namespace weightcast::transport::verbs {
namespace {

/// Asked for in this order; some devices refuse what is too much, others grant less.
constexpr std::array<uint32_t, 3> kInline = {220, kMaxMessage, 36};
/// 0.64 ms until a receiver that had no room is asked again.
constexpr uint8_t kReceiverNotReady = 12;
constexpr uint8_t kHops = 64;

}  // namespace

uint8_t TimeoutFor(const Settings& settings) {
  if (settings.rdma_timeout > 0) return static_cast<uint8_t>(settings.rdma_timeout);
  const double limit = Seconds(settings.lease) / 4;
  const auto tries = static_cast<double>(settings.rdma_retries + 1);
  uint8_t timeout = 1;
  while (timeout < 31 && 4.096e-6 * static_cast<double>(uint64_t{2} << timeout) * tries <= limit) ++timeout;
  return timeout;
}

Result<std::unique_ptr<Queue>> Queue::Create(Nic& nic, uint32_t depth) {
  const RdmaDevice& device = nic.device();
  depth = std::min(depth, static_cast<uint32_t>(std::max(device.limits().max_qp_wr, 1)));
  if (nic.queues().size() >= QueueTable::kMost) {
    return Error(
        Code::kExhausted, device.name(), ": this process has ", nic.queues().size(),
        " queue pairs on this NIC, the most that are allowed; connect to fewer peers, or use more NICs");
  }
  if (nic.completions().room() < kOwn) {
    return Error(Code::kExhausted, device.name(), ": no room in its completion queue for one more than ",
                 nic.queues().size(), " queue pairs; connect to fewer peers, or use more NICs");
  }
  std::unique_ptr<Queue> made(new Queue(nic, depth));
  int error = 0;
  for (const uint32_t inline_bytes : kInline) {
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = nic.completions().handle();
    attr.srq = nic.receives().handle();
    attr.qp_type = IBV_QPT_RC;
    attr.cap = {.max_send_wr = depth,
                .max_recv_wr = 0,
                .max_send_sge = 1,
                .max_recv_sge = 0,
                .max_inline_data = inline_bytes};
    made->queue_ = device.api().CreateQp(nic.domain().handle(), &attr);
    error = errno;
    made->inline_bytes_ = attr.cap.max_inline_data;
    if (made->queue_ != nullptr || error != EINVAL) break;
  }
  if (made->queue_ == nullptr) {
    return Error(Code::kExhausted, device.name(), ": cannot make a queue pair (", nic.queues().size(),
                 " of at most ", device.limits().max_qp, " exist here): ", ErrnoText(error),
                 "; connect to fewer peers, or use more NICs");
  }
  made->id_ = nic.queues().Attach(made->queue_->qp_num);
  nic.completions().TakeRoom(kOwn);
  made->psn_ = static_cast<uint32_t>(RandomId()) & 0xffffff;
  if (made->inline_bytes_ < kInline.back()) {
    return Error(Code::kUnavailable, device.name(), " sends only ", made->inline_bytes_,
                 " bytes inline, of at least ", kInline.back(), "; leave that NIC out in setting nics");
  }
  WC_RETURN_IF_ERROR(made->ToInit());
  return made;
}

Queue::~Queue() {
  if (queue_ != nullptr) Destroy();
}

void Queue::Retire() {
  if (queue_ == nullptr) return;
  (void)Stop();
  // Some devices sweep its completions out of the queue when it is destroyed, with the receives in them.
  nic_.Drain();
  Destroy();
}

bool Queue::Stop() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  return nic_.device().api().ModifyQp(queue_, &attr, IBV_QP_STATE) == 0;
}

void Queue::Destroy() {
  RdmaDevice& device = nic_.device();
  const uint32_t number = queue_->qp_num;
  if (const int error = device.api().DestroyQp(queue_); error != 0) {
    device.Die(StrCat(device.name(), ": a queue pair cannot be destroyed: ", ErrnoText(error)));
    if (!Stop()) nic_.queues().Lose();
  }
  queue_ = nullptr;
  nic_.Drain();  // Others leave them there: they are its owner's too.
  nic_.queues().Detach(number, id_);
  nic_.completions().GiveRoomOnceEmpty(kOwn + beyond_own());
}

Status Queue::ToInit() {
  const RdmaDevice& device = nic_.device();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = nic_.port().number();
  attr.pkey_index = nic_.port().pkey_index();
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  const int error = device.api().ModifyQp(
      queue_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return error == 0 ? Status::Ok() : device.Failed("a queue pair cannot be set up", error);
}

Result<ibv_ah_attr> Queue::Path(const Address& peer, const Settings& settings) const {
  const Port& port = nic_.port();
  ibv_ah_attr path{};
  path.port_num = port.number();
  path.sl = static_cast<uint8_t>(settings.service_level);
  path.dlid = peer.lid;
  // Within an InfiniBand subnet only some ports want it: 40 bytes a packet.
  if (!peer.infiniband || peer.grh || port.address().grh) {
    path.is_global = 1;
    std::copy(peer.gid.begin(), peer.gid.end(), path.grh.dgid.raw);
    path.grh.sgid_index = port.gid_index();
    path.grh.hop_limit = kHops;
    WC_ASSIGN_OR_RETURN(const auto traffic_class, ParseTrafficClass(settings.traffic_class));
    path.grh.traffic_class = traffic_class.value_or(0);
  }
  return path;
}

Status Queue::Connect(const Address& peer, const QueueName& name, const Settings& settings) {
  const RdmaDevice& device = nic_.device();
  Port& port = nic_.port();
  if (device.dead()) return device.why_dead();
  if (std::string apart = WhyApart(peer, port.address()); !apart.empty())
    return Error(Code::kUnavailable, device.name(), ": ", apart);
  const TimePoint began = Clock::now();
  if (const auto wait = port.lost_peers().Wait(peer.gid, began); wait && !peer.infiniband) {
    return Error(Code::kUnavailable, device.name(), ": no route to ", ToString(peer),
                 ", looked for again in ", static_cast<int>(Seconds(*wait)) + 1,
                 " s; check the network between the hosts");
  }
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  WC_ASSIGN_OR_RETURN(attr.ah_attr, Path(peer, settings));
  attr.path_mtu = static_cast<ibv_mtu>(std::min(peer.mtu, port.address().mtu));
  attr.dest_qp_num = name.number;
  attr.rq_psn = name.psn;
  attr.max_dest_rd_atomic = port.address().reads;
  attr.min_rnr_timer = kReceiverNotReady;
  int error = device.api().ModifyQp(queue_, &attr,
                                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) {
    const TimePoint now = Clock::now();
    port.lost_peers().OnFailed(peer.gid, now - began, now);
    return Error(Code::kUnavailable, device.name(), ": no route to ", ToString(peer), ": ", ErrnoText(error),
                 "; check the network between the hosts");
  }
  port.lost_peers().OnFound(peer.gid);
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = psn_;
  attr.timeout = TimeoutFor(settings);
  attr.retry_cnt = static_cast<uint8_t>(settings.rdma_retries);
  attr.rnr_retry = static_cast<uint8_t>(settings.rnr_retries);
  attr.max_rd_atomic =
      std::min(peer.reads, static_cast<uint8_t>(std::clamp(device.limits().max_qp_init_rd_atom, 0, 255)));
  error = device.api().ModifyQp(queue_, &attr,
                                IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  return error == 0 ? Status::Ok() : device.Failed("a queue pair cannot be made to send", error);
}

ibv_send_wr& Queue::Add(const Place& place, ibv_wr_opcode opcode) {
  if (batched_ == kBatch) (void)Flush();  // The next one says if it failed.
  const uint32_t at = batched_++;
  places_[at] = {.addr = place.local, .length = place.length, .lkey = place.lkey};
  ibv_send_wr& request = requests_[at];
  request.wr_id = static_cast<uint64_t>(id_) << 32 | added_;
  request.next = nullptr;
  request.sg_list = &places_[at];
  request.num_sge = place.length > 0 ? 1 : 0;
  request.opcode = opcode;
  request.send_flags = 0;
  if (opcode != IBV_WR_RDMA_READ && place.length <= inline_bytes_ && !place.device)
    request.send_flags = IBV_SEND_INLINE;
  if (added_ % kSignalEvery == kSignalEvery - 1 || place.length >= kLong)
    request.send_flags |= IBV_SEND_SIGNALED;
  request.wr.rdma = {.remote_addr = place.remote, .rkey = place.rkey};
  if (at > 0) requests_[at - 1].next = &request;
  if (under_way() >= kOwn) nic_.completions().TakeRoom(1);
  ++added_;
  return request;
}

void Queue::AddWrite(const Place& place, uint32_t immediate) {
  Add(place, IBV_WR_RDMA_WRITE_WITH_IMM).imm_data = htonl(immediate);
}

void Queue::AddMessage(const MessageBytes& message) {
  // Inline: the device takes the bytes while it is posted, from our own copy.
  ibv_send_wr& request =
      Add({.local = 0, .lkey = 0, .remote = 0, .rkey = 0, .length = message.length}, IBV_WR_SEND);
  const size_t at = batched_ - 1;
  messages_[at] = message;
  places_[at].addr = reinterpret_cast<uint64_t>(messages_[at].bytes.data());
  request.send_flags |= IBV_SEND_INLINE;
}

Status Queue::Flush() {
  // Nothing behind a list that was not posted: a signal must not overtake its writes.
  if (batched_ > 0 && broken_.ok()) {
    requests_[batched_ - 1].send_flags |= IBV_SEND_SIGNALED;
    const RdmaDevice& device = nic_.device();
    ibv_send_wr* bad = nullptr;
    const int error = device.api().PostSend(queue_, requests_.data(), &bad);
    if (error != 0) broken_ = device.Failed("a request cannot be posted to a queue pair", error);
  }
  batched_ = 0;
  return broken_;
}

void Queue::Complete(uint32_t sequence) {
  const uint32_t before = beyond_own();
  done_ = sequence + 1;
  nic_.completions().GiveRoom(before - beyond_own());
}

}  // namespace weightcast::transport::verbs
