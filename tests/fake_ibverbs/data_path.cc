#include <algorithm>
#include <cstring>

#include "fake_ibverbs/host.h"

namespace weightcast::fake {
namespace {

uint64_t LengthOf(const ibv_sge* sges, int count) {
  uint64_t length = 0;
  for (int i = 0; i < count; ++i) length += sges[i].length;
  return length;
}

int CheckRequest(const Qp& qp, const ibv_send_wr& request) {
  if (qp.state != IBV_QPS_RTS && qp.state != IBV_QPS_ERR) return EINVAL;
  if (request.opcode > IBV_WR_RDMA_READ) return EOPNOTSUPP;
  if (request.num_sge < 0 || static_cast<uint32_t>(request.num_sge) > qp.cap.max_send_sge) return EINVAL;
  const bool inlined = (request.send_flags & IBV_SEND_INLINE) != 0;
  const uint64_t length = LengthOf(request.sg_list, request.num_sge);
  if (inlined && (request.opcode == IBV_WR_RDMA_READ || length > qp.cap.max_inline_data)) return EINVAL;
  return qp.posted - qp.freed == qp.ring.size() ? ENOMEM : 0;
}

void CopyInline(std::byte* to, const ibv_send_wr& request) {
  for (int i = 0; i < request.num_sge; ++i) {
    const ibv_sge& sge = request.sg_list[i];
    if (sge.length > 0) std::memcpy(to, reinterpret_cast<const void*>(sge.addr), sge.length);
    to += sge.length;
  }
}

}  // namespace

int FakeIbverbs::PostOne(Qp& qp, const ibv_send_wr& request) {
  if (const int error = Refused(Call::kPostSend); error != 0) return error;
  if (const int error = CheckRequest(qp, request); error != 0) return error;
  const uint64_t slot = qp.posted;
  Send& send = qp.At(slot);
  const Duration previous = qp.executed < qp.posted ? qp.At(qp.posted - 1).due : Duration::zero();
  send.wr_id = request.wr_id;
  send.opcode = request.opcode;
  send.flags = request.send_flags;
  send.imm = request.imm_data;
  send.remote_address = request.wr.rdma.remote_addr;
  send.rkey = request.wr.rdma.rkey;
  send.sges = request.num_sge;
  send.length = LengthOf(request.sg_list, request.num_sge);
  send.due = std::max(previous, core_->Now() + core_->DrawDelay(host_));
  send.status = IBV_WC_SUCCESS;
  if ((send.flags & IBV_SEND_INLINE) != 0) {
    CopyInline(qp.InlineOf(slot), request);
  } else {
    std::copy_n(request.sg_list, request.num_sge, qp.SgesOf(slot));
  }
  ++qp.posted;
  ++qp.owner->counters.posted;
  if (qp.state == IBV_QPS_ERR) {
    core_->Flush(qp);
  } else {
    core_->Activate(qp);
  }
  return 0;
}

int FakeIbverbs::PostSend(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
  const std::lock_guard lock(core_->mutex);
  for (ibv_send_wr* request = list; request != nullptr; request = request->next) {
    if (const int error = PostOne(*static_cast<Qp*>(qp), *request); error != 0) {
      *bad = request;
      return error;
    }
  }
  return 0;
}

int FakeIbverbs::PostSrqRecv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) {
  const std::lock_guard lock(core_->mutex);
  Srq& mine = *static_cast<Srq*>(srq);
  for (ibv_recv_wr* request = list; request != nullptr; request = request->next) {
    int error = Refused(Call::kPostSrqRecv);
    const bool fits = request->num_sge >= 0 && static_cast<uint32_t>(request->num_sge) <= mine.max_sge;
    if (error == 0 && !fits) error = EINVAL;
    if (error == 0 && mine.head - mine.tail == mine.ring.size()) error = ENOMEM;
    if (error != 0) {
      *bad = request;
      return error;
    }
    const uint64_t slot = mine.head++ % mine.ring.size();
    mine.ring[slot] = {request->wr_id, request->num_sge};
    std::copy_n(request->sg_list, request->num_sge, mine.sges.data() + slot * mine.max_sge);
  }
  return 0;
}

int FakeIbverbs::PollCq(ibv_cq* cq, int entries, ibv_wc* out) {
  const std::lock_guard lock(core_->mutex);
  if (!core_->config().virtual_time) core_->Pump();
  Cq& mine = *static_cast<Cq*>(cq);
  int count = 0;
  if (host_.dead) return 0;
  for (; count < entries && mine.tail < mine.head; ++count) {
    const Cqe& cqe = mine.ring[mine.tail++ % mine.ring.size()];
    out[count] = cqe.wc;
    if (cqe.qp != nullptr) cqe.qp->freed = std::max(cqe.qp->freed, cqe.frees);
  }
  return count;
}

int FakeIbverbs::ReqNotifyCq(ibv_cq* cq, bool solicited_only) {
  const std::lock_guard lock(core_->mutex);
  if (const int error = Refused(Call::kReqNotifyCq); error != 0) return error;
  core_->Arm(*static_cast<Cq*>(cq), solicited_only);
  return 0;
}

}  // namespace weightcast::fake
