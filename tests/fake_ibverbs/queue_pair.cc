#include <algorithm>
#include <bit>
#include <cstring>

#include "fake_ibverbs/host.h"

namespace weightcast::fake {
namespace {

struct Transition {
  ibv_qp_state from;
  ibv_qp_state to;
  int required;
  int optional;
};

/// Of reliable connections, as the kernel's table has it (drivers/infiniband/core/verbs.c), without what
/// drains.
constexpr std::array kTransitions = {
    Transition{IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    Transition{IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    Transition{IBV_QPS_INIT, IBV_QPS_RTR,
               IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                   IBV_QP_MIN_RNR_TIMER,
               IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    Transition{IBV_QPS_RTR, IBV_QPS_RTS,
               IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
               IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
    Transition{IBV_QPS_RTS, IBV_QPS_RTS, 0,
               IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
};

bool IsAllowed(ibv_qp_state from, ibv_qp_state to, int mask) {
  mask &= ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return mask == 0;
  return std::any_of(kTransitions.begin(), kTransitions.end(), [&](const Transition& each) {
    return each.from == from && each.to == to && (mask & each.required) == each.required &&
           (mask & ~(each.required | each.optional)) == 0;
  });
}

bool IsMapped(const ibv_gid& gid) {
  static constexpr std::array<uint8_t, 12> kPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix.data(), kPrefix.size()) == 0;
}

/// Whether this port has a way to that address: Ethernet resolves it now, InfiniBand finds out later.
int CheckRoute(const Core& core, const Port& port, const ibv_ah_attr& route) {
  if (route.is_global == 0) {
    return port.config.infiniband && route.dlid != 0 && !port.config.grh_required ? 0 : EINVAL;
  }
  if (route.grh.sgid_index >= port.gids.size()) return EINVAL;
  if (port.config.infiniband) return 0;
  const ibv_gid_entry& source = port.gids[route.grh.sgid_index];
  for (const Host* host : core.hosts) {
    for (const auto& device : host->devices) {
      for (const Port& other : device->ports) {
        if (other.config.rail != port.config.rail) continue;
        for (const ibv_gid_entry& entry : other.gids) {
          const bool same = std::memcmp(&entry.gid, &route.grh.dgid, sizeof entry.gid) == 0;
          const bool family = IsMapped(entry.gid) == IsMapped(source.gid);
          if (same && family && entry.gid_type == source.gid_type) return 0;
        }
      }
    }
  }
  return EINVAL;
}

int CheckValues(const Core& core, const Qp& qp, const ibv_qp_attr& attr, int mask) {
  const Device& device = *qp.owner;
  if ((mask & IBV_QP_PORT) != 0 && (attr.port_num == 0 || attr.port_num > device.ports.size())) return EINVAL;
  if ((mask & IBV_QP_PKEY_INDEX) != 0 &&
      attr.pkey_index >= device.ports[(mask & IBV_QP_PORT) != 0 ? attr.port_num - 1U : 0].config.pkeys.size())
    return EINVAL;
  if ((mask & IBV_QP_TIMEOUT) != 0 && attr.timeout > 31) return EINVAL;
  if ((mask & IBV_QP_RETRY_CNT) != 0 && attr.retry_cnt > 7) return EINVAL;
  if ((mask & IBV_QP_RNR_RETRY) != 0 && attr.rnr_retry > 7) return EINVAL;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && attr.min_rnr_timer > 31) return EINVAL;
  const uint8_t most = device.config.max_rd_atom;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && attr.max_rd_atomic > most) return EINVAL;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 && attr.max_dest_rd_atomic > most) return EINVAL;
  if ((mask & IBV_QP_AV) == 0) return 0;
  if (attr.ah_attr.port_num != qp.attr.port_num) return EINVAL;
  const Port& port = device.ports[qp.attr.port_num - 1U];
  if (attr.path_mtu < IBV_MTU_256 || attr.path_mtu > port.config.mtu) return EINVAL;
  return CheckRoute(core, port, attr.ah_attr);
}

void Take(ibv_qp_attr& to, const ibv_qp_attr& from, int mask) {
  const auto take = [&](int bit, auto member) {
    if ((mask & bit) != 0) to.*member = from.*member;
  };
  take(IBV_QP_ACCESS_FLAGS, &ibv_qp_attr::qp_access_flags);
  take(IBV_QP_PKEY_INDEX, &ibv_qp_attr::pkey_index);
  take(IBV_QP_PORT, &ibv_qp_attr::port_num);
  take(IBV_QP_AV, &ibv_qp_attr::ah_attr);
  take(IBV_QP_PATH_MTU, &ibv_qp_attr::path_mtu);
  take(IBV_QP_DEST_QPN, &ibv_qp_attr::dest_qp_num);
  take(IBV_QP_RQ_PSN, &ibv_qp_attr::rq_psn);
  take(IBV_QP_SQ_PSN, &ibv_qp_attr::sq_psn);
  take(IBV_QP_TIMEOUT, &ibv_qp_attr::timeout);
  take(IBV_QP_RETRY_CNT, &ibv_qp_attr::retry_cnt);
  take(IBV_QP_RNR_RETRY, &ibv_qp_attr::rnr_retry);
  take(IBV_QP_MIN_RNR_TIMER, &ibv_qp_attr::min_rnr_timer);
  take(IBV_QP_MAX_QP_RD_ATOMIC, &ibv_qp_attr::max_rd_atomic);
  take(IBV_QP_MAX_DEST_RD_ATOMIC, &ibv_qp_attr::max_dest_rd_atomic);
}

int CheckWanted(const Device& device, const ibv_qp_init_attr& attr) {
  const ibv_qp_cap& cap = attr.cap;
  const auto most = static_cast<uint32_t>(device.config.max_qp_wr);
  const auto sges = static_cast<uint32_t>(device.config.max_sge);
  if (attr.qp_type != IBV_QPT_RC) return EOPNOTSUPP;
  if (attr.send_cq == nullptr || attr.recv_cq == nullptr) return EINVAL;
  if (cap.max_send_wr == 0 || cap.max_send_wr > most || cap.max_recv_wr > most) return EINVAL;
  if (cap.max_send_sge > sges || cap.max_recv_sge > sges) return EINVAL;
  if (cap.max_inline_data > device.config.max_inline) return EINVAL;
  return device.qps.size() >= static_cast<size_t>(device.config.max_qp) ? ENOMEM : 0;
}

void UseAll(const Qp& qp, int change) {
  static_cast<Cq*>(qp.send_cq)->users += change;
  static_cast<Cq*>(qp.recv_cq)->users += change;
  static_cast<Pd*>(qp.pd)->users += change;
  if (qp.srq != nullptr) static_cast<Srq*>(qp.srq)->users += change;
}

}  // namespace

ibv_qp* FakeIbverbs::CreateQp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  const std::lock_guard lock(core_->mutex);
  Device& device = DeviceOf(pd->context);
  if (const int error = Refused(Call::kCreateQp, device); error != 0) return Errno(error);
  if (const int error = CheckWanted(device, *attr); error != 0) return Errno(error);
  if (device.config.rounds_up) attr->cap.max_send_wr = std::bit_ceil(attr->cap.max_send_wr + 1) - 1;
  auto qp = std::make_unique<Qp>();
  const uint64_t id = core_->NextId();
  qp->context = pd->context;
  qp->qp_context = attr->qp_context;
  qp->pd = pd;
  qp->send_cq = attr->send_cq;
  qp->recv_cq = attr->recv_cq;
  qp->srq = attr->srq;
  qp->qp_num = static_cast<uint32_t>(id) & 0xffffff;
  qp->state = IBV_QPS_RESET;
  qp->qp_type = attr->qp_type;
  qp->owner = &device;
  qp->cap = attr->cap;
  qp->signal_all = attr->sq_sig_all != 0;
  qp->ring.resize(attr->cap.max_send_wr);
  qp->sges.resize(size_t{attr->cap.max_send_wr} * attr->cap.max_send_sge);
  qp->inlined.resize(size_t{attr->cap.max_send_wr} * attr->cap.max_inline_data);
  UseAll(*qp, 1);
  core_->Add(*qp);
  return device.qps.Add(std::move(qp), id);
}

int FakeIbverbs::ModifyQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  const bool connects = (mask & IBV_QP_STATE) != 0 && attr->qp_state == IBV_QPS_RTR;
  if (connects) Wait(Call::kConnectQp);
  const std::lock_guard lock(core_->mutex);
  Qp& mine = *static_cast<Qp*>(qp);
  if (const int error = Refused(Call::kModifyQp, *mine.owner); error != 0) return error;
  if (const int error = connects ? Planned(Call::kConnectQp) : 0; error != 0) return error;
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attr->qp_state : mine.state;
  if ((mask & IBV_QP_CUR_STATE) != 0 && attr->cur_qp_state != mine.state) return EINVAL;
  if (!IsAllowed(mine.state, to, mask)) return EINVAL;
  if (const int error = CheckValues(*core_, mine, *attr, mask); error != 0) return error;
  Take(mine.attr, *attr, mask);
  if ((mask & IBV_QP_RQ_PSN) != 0) mine.expected_psn = attr->rq_psn & 0xffffff;
  if ((mask & IBV_QP_SQ_PSN) != 0) mine.next_psn = attr->sq_psn & 0xffffff;
  if (to == IBV_QPS_ERR) {
    // Also from RESET, where there is nothing to flush.
    core_->Break(mine);
  } else if (to == IBV_QPS_RESET) {
    core_->Sweep(mine, false);
    mine.freed = mine.done = mine.executed = mine.posted;
    mine.stalled = mine.endless = false;
    mine.attempts = mine.rnr_attempts = 0;
    mine.retry_at = {};
    mine.attr = {};
  }
  mine.state = to;
  return 0;
}

int FakeIbverbs::QueryQp(ibv_qp* qp, ibv_qp_attr* attr, int /*mask*/, ibv_qp_init_attr* init) {
  const std::lock_guard lock(core_->mutex);
  const Qp& mine = *static_cast<const Qp*>(qp);
  *attr = mine.attr;
  attr->qp_state = attr->cur_qp_state = mine.state;
  attr->cap = mine.cap;
  attr->rq_psn = mine.expected_psn;
  attr->sq_psn = mine.next_psn;
  *init = {};
  init->qp_context = mine.qp_context;
  init->send_cq = mine.send_cq;
  init->recv_cq = mine.recv_cq;
  init->srq = mine.srq;
  init->cap = mine.cap;
  init->qp_type = mine.qp_type;
  init->sq_sig_all = mine.signal_all ? 1 : 0;
  return 0;
}

int FakeIbverbs::DestroyQp(ibv_qp* qp) {
  std::unique_lock lock(core_->mutex);
  Qp& mine = *static_cast<Qp*>(qp);
  if (const int error = Planned(Call::kDestroyQp); error != 0) return error;
  if (mine.owner->removed) return EIO;
  core_->Forget(mine);
  mine.vanished = true;
  core_->Sweep(mine, mine.owner->config.keeps_completions);
  static_cast<Context*>(mine.context)->events.EraseIf([&](const ibv_async_event& event) {
    return IsQpEvent(event.event_type) && event.element.qp == &mine;
  });
  AwaitAcks(lock, mine.unacked_async, "queue pair");
  UseAll(mine, -1);
  mine.owner->qps.Remove(&mine, "queue pair");
  return 0;
}

}  // namespace weightcast::fake
