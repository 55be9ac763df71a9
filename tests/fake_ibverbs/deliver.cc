#include <algorithm>
#include <atomic>
#include <cstring>

#include "fake_ibverbs/core.h"

namespace weightcast::fake {
namespace {

using namespace std::chrono_literals;

constexpr uint8_t kForEver = 7;

/// Microseconds of min_rnr_timer's 32 values (InfiniBand specification, table 45).
constexpr std::array<int, 32> kRnrTimer = {655360, 10,    20,    30,     40,     60,     80,     120,
                                           160,    240,   320,   480,    640,    960,    1280,   1920,
                                           2560,   3840,  5120,  7680,   10240,  15360,  20480,  30720,
                                           40960,  61440, 81920, 122880, 163840, 245760, 327680, 491520};

/// A whole word at once, as a NIC writes it: the target may look at it in a loop.
void CopyPiece(std::byte* to, const std::byte* from, uint64_t size) {
  if (size != sizeof(uint64_t) || reinterpret_cast<uintptr_t>(to) % sizeof(uint64_t) != 0) {
    std::memcpy(to, from, size);
    return;
  }
  uint64_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  std::atomic_ref(*reinterpret_cast<uint64_t*>(to)).store(word, std::memory_order_release);
}

Duration AckTimeout(const Qp& qp) { return Duration(4096LL << (qp.attr.timeout & 31)); }

bool IsAt(const Qp& peer, const Qp& qp) {
  const ibv_ah_attr& route = qp.attr.ah_attr;
  const Port& port = peer.owner->ports[peer.attr.port_num - 1U];
  if (port.config.infiniband && port.lid != route.dlid) return false;
  if (route.is_global == 0) return port.lid != 0 && !port.config.grh_required;
  return std::any_of(port.gids.begin(), port.gids.end(), [&](const ibv_gid_entry& entry) {
    return std::memcmp(&entry.gid, &route.grh.dgid, sizeof entry.gid) == 0;
  });
}

/// Both are in one partition, and not both as limited members.
bool SamePartition(const Qp& x, const Qp& y) {
  const auto key = [](const Qp& qp) {
    return qp.owner->ports[qp.attr.port_num - 1U].config.pkeys[qp.attr.pkey_index];
  };
  return ((key(x) ^ key(y)) & 0x7fff) == 0 && ((key(x) | key(y)) & 0x8000) != 0;
}

bool WantsReceive(ibv_wr_opcode opcode) { return opcode != IBV_WR_RDMA_WRITE && opcode != IBV_WR_RDMA_READ; }
bool IsSend(ibv_wr_opcode opcode) { return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM; }
bool HasImmediate(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

uint32_t Packets(const Qp& qp, uint64_t length) {
  const uint64_t mtu = 128ULL << qp.attr.path_mtu;
  return static_cast<uint32_t>(std::max<uint64_t>(1, (length + mtu - 1) / mtu));
}

}  // namespace

// A queue pair that cannot be reached and one that does not take our packets look the same from here.
Qp* Core::Reach(const Qp& qp) const {
  Qp* peer = Find(qp.attr.dest_qp_num);
  if (peer == nullptr || peer->attr.dest_qp_num != qp.qp_num || !IsAt(*peer, qp)) return nullptr;
  if (!SamePartition(qp, *peer)) return nullptr;
  if (peer->state != IBV_QPS_RTR && peer->state != IBV_QPS_RTS) return nullptr;
  if (peer->expected_psn != qp.next_psn) return nullptr;
  const Port& here = qp.owner->ports[qp.attr.port_num - 1U];
  const Port& there = peer->owner->ports[peer->attr.port_num - 1U];
  if (here.link != Link::kUp || there.link != Link::kUp || here.config.rail != there.config.rail)
    return nullptr;
  return peer;
}

void Core::Retry(Qp& qp, Send& send, Duration now) {
  ++qp.owner->counters.retries;
  qp.endless = qp.attr.timeout == 0;
  if (!qp.endless && ++qp.attempts > qp.attr.retry_cnt + 1) {
    return Finish(qp, send, IBV_WC_RETRY_EXC_ERR, now);
  }
  qp.retry_at = now + (qp.endless ? Duration(1s) : AckTimeout(qp));
}

void Core::RetryNotReady(Qp& qp, Qp& peer, Send& send, Duration now) {
  ++peer.owner->counters.rnr_naks;
  qp.attempts = 0;
  qp.endless = qp.attr.rnr_retry == kForEver;
  if (!qp.endless && ++qp.rnr_attempts > qp.attr.rnr_retry) {
    return Finish(qp, send, IBV_WC_RNR_RETRY_EXC_ERR, now);
  }
  qp.retry_at = now + std::chrono::microseconds(kRnrTimer[peer.attr.min_rnr_timer & 31]);
}

void Core::Finish(Qp& qp, Send& send, ibv_wc_status status, Duration at) {
  send.status = status;
  send.acked = at;
  qp.stalled = status != IBV_WC_SUCCESS;
  qp.endless = false;
  qp.attempts = qp.rnr_attempts = 0;
  qp.retry_at = {};
  ++qp.executed;
}

void Core::Execute(Qp& qp, Duration now) {
  Send& send = qp.At(qp.executed);
  if (send.length > qp.owner->config.max_msg_sz) return Finish(qp, send, IBV_WC_LOC_LEN_ERR, now);
  bool ok = true;
  GatherLocal(qp, qp.executed, ok, send.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0);
  if (!ok) return Finish(qp, send, IBV_WC_LOC_PROT_ERR, now);
  Qp* peer = Reach(qp);
  if (peer == nullptr) return Retry(qp, send, now);

  Host& host = *qp.owner->host;
  const bool drop = host.drop_ack == 1;
  const uint64_t limit = drop ? std::min<uint64_t>(send.length, host.drop_landed) : send.length;
  const ibv_wc_status status = Deliver(qp, *peer, send, limit);
  if (status == IBV_WC_RNR_RETRY_EXC_ERR) return RetryNotReady(qp, *peer, send, now);
  if (host.drop_ack > 0) --host.drop_ack;
  if (qp.state != IBV_QPS_RTS) return;  // Its own completion queue overran.
  if (!drop) return Finish(qp, send, status, now + ack_delay);
  const bool endless = qp.attr.timeout == 0;
  Finish(qp, send, IBV_WC_RETRY_EXC_ERR, endless ? kNever : now + AckTimeout(qp) * (qp.attr.retry_cnt + 1));
}

ibv_wc_status Core::Deliver(Qp& qp, Qp& peer, Send& send, uint64_t limit) {
  ibv_wc_status status = IBV_WC_SUCCESS;
  const bool torn = limit < send.length;
  if (!IsSend(send.opcode)) {
    if (WantsReceive(send.opcode) && !torn && !DeliverableTo(peer)) return IBV_WC_RNR_RETRY_EXC_ERR;
    status = DeliverDirect(qp, peer, send, limit);
  } else if (!DeliverableTo(peer)) {
    return IBV_WC_RNR_RETRY_EXC_ERR;
  }
  if (status == IBV_WC_SUCCESS) Count(qp, peer, send);
  if (status == IBV_WC_SUCCESS && WantsReceive(send.opcode) && !torn) {
    status = DeliverToReceive(qp, peer, send);
  } else if (status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR) {
    PushQpEvent(peer, status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
    Break(peer);
  }
  return status;
}

bool Core::DeliverableTo(const Qp& peer) {
  const auto* srq = static_cast<const Srq*>(peer.srq);
  return srq != nullptr && srq->head != srq->tail;
}

ibv_wc_status Core::DeliverDirect(Qp& qp, Qp& peer, const Send& send, uint64_t limit) {
  const bool read = send.opcode == IBV_WR_RDMA_READ;
  if (read && (peer.attr.max_dest_rd_atomic == 0 || qp.attr.max_rd_atomic == 0))
    return IBV_WC_REM_INV_REQ_ERR;
  if (send.length == 0) return IBV_WC_SUCCESS;  // Its key is not looked at.
  const int access = read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  if ((peer.attr.qp_access_flags & static_cast<unsigned>(access)) == 0) return IBV_WC_REM_ACCESS_ERR;
  const Mr* mr = FindMr(send.rkey, peer.pd, send.remote_address, send.length, access);
  if (mr == nullptr) return IBV_WC_REM_ACCESS_ERR;
  remote_.clear();
  remote_.push_back({mr->memory + (send.remote_address - mr->iova), send.length});
  read ? Copy(remote_, local_, limit) : Copy(local_, remote_, limit);
  return IBV_WC_SUCCESS;
}

ibv_wc_status Core::DeliverToReceive(Qp& qp, Qp& peer, const Send& send) {
  Srq& srq = *static_cast<Srq*>(peer.srq);
  const uint64_t slot = srq.tail % srq.ring.size();
  ibv_wc_status here = IBV_WC_SUCCESS;
  ibv_wc_status there = IBV_WC_SUCCESS;
  if (IsSend(send.opcode)) {
    remote_.clear();
    const bool ok = Gather(remote_, srq.sges.data() + slot * srq.max_sge, srq.ring[slot].sges, srq.pd,
                           IBV_ACCESS_LOCAL_WRITE);
    if (!ok) {
      here = IBV_WC_REM_OP_ERR;
      there = IBV_WC_LOC_PROT_ERR;
    } else if (Copy(local_, remote_, send.length) < send.length) {
      here = IBV_WC_REM_INV_REQ_ERR;
      there = IBV_WC_LOC_LEN_ERR;
    }
  }
  PushReceived(peer, qp, send, there);
  if (there != IBV_WC_SUCCESS) Break(peer);
  return here;
}

void Core::PushReceived(Qp& peer, const Qp& qp, const Send& send, ibv_wc_status status) {
  Srq& srq = *static_cast<Srq*>(peer.srq);
  const Receive& receive = srq.ring[srq.tail++ % srq.ring.size()];
  Cqe cqe{.qp = nullptr};
  cqe.wc.wr_id = receive.wr_id;
  cqe.wc.status = status;
  cqe.wc.opcode = IsSend(send.opcode) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
  cqe.wc.byte_len = static_cast<uint32_t>(send.length);
  cqe.wc.qp_num = peer.qp_num;
  cqe.wc.src_qp = qp.qp_num;
  if (HasImmediate(send.opcode)) {
    cqe.wc.wc_flags = IBV_WC_WITH_IMM;
    cqe.wc.imm_data = send.imm;
  }
  Push(*static_cast<Cq*>(peer.recv_cq), cqe,
       status != IBV_WC_SUCCESS || (send.flags & IBV_SEND_SOLICITED) != 0);
}

bool Core::Gather(std::vector<Span>& spans, const ibv_sge* sges, int count, const ibv_pd* pd,
                  int access) const {
  for (int i = 0; i < count; ++i) {
    const ibv_sge& sge = sges[i];
    if (sge.length == 0) continue;
    const Mr* mr = FindMr(sge.lkey, pd, sge.addr, sge.length, access);
    if (mr == nullptr) return false;
    spans.push_back({mr->memory + (sge.addr - mr->iova), sge.length});
  }
  return true;
}

void Core::GatherLocal(Qp& qp, uint64_t slot, bool& ok, int access) {
  const Send& send = qp.At(slot);
  local_.clear();
  if ((send.flags & IBV_SEND_INLINE) != 0) {
    if (send.length > 0) local_.push_back({qp.InlineOf(slot), send.length});
    return;
  }
  ok = Gather(local_, qp.SgesOf(slot), send.sges, qp.pd, access);
}

uint64_t Core::Copy(const std::vector<Span>& from, const std::vector<Span>& to, uint64_t limit) {
  uint64_t copied = 0;
  size_t target = 0;
  uint64_t filled = 0;
  for (const Span& source : from) {
    uint64_t taken = 0;
    while (taken < source.length && target < to.size() && copied < limit) {
      const uint64_t piece = std::min({source.length - taken, to[target].length - filled, limit - copied});
      CopyPiece(to[target].data + filled, source.data + taken, piece);
      taken += piece;
      copied += piece;
      filled += piece;
      if (filled == to[target].length) ++target, filled = 0;
    }
  }
  return copied;
}

void Core::Count(Qp& qp, Qp& peer, const Send& send) {
  const uint32_t packets = Packets(qp, send.length);
  qp.next_psn = (qp.next_psn + packets) & 0xffffff;
  peer.expected_psn = (peer.expected_psn + packets) & 0xffffff;
  Counters& here = qp.owner->counters;
  Counters& there = peer.owner->counters;
  ++here.messages_sent;
  ++there.messages_received;
  const bool read = send.opcode == IBV_WR_RDMA_READ;
  (read ? there : here).bytes_sent += send.length;
  (read ? here : there).bytes_received += send.length;
}

}  // namespace weightcast::fake
