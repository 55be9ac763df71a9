#include "fake_ibverbs/core.h"

#include <algorithm>
#include <cstring>

namespace weightcast::fake {

Core::Core(const Config& config)
    : config_(config), start_(std::chrono::steady_clock::now()), random_(config.seed) {
  // Numbers that begin anywhere but at zero show who takes one for another.
  last_id_ = 0x100 + random_() % 0x1000;
  slots_.resize(1 + random_() % 0x100);
  if (config_.background && !config_.virtual_time) thread_ = std::thread([this] { Background(); });
}

Core::~Core() {
  {
    const std::lock_guard lock(mutex);
    stop_ = true;
  }
  kicked_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Duration Core::Now() const {
  return config_.virtual_time ? now_ : Duration(std::chrono::steady_clock::now() - start_);
}

void Core::Add(Qp& qp) { qps_[qp.qp_num] = &qp; }

void Core::Forget(Qp& qp) {
  qps_.erase(qp.qp_num);
  std::erase(active_, &qp);
  qp.active = false;
}

Qp* Core::Find(uint32_t qp_num) const {
  const auto found = qps_.find(qp_num);
  return found != qps_.end() ? found->second : nullptr;
}

void Core::Activate(Qp& qp) {
  if (!qp.active) active_.push_back(&qp);
  qp.active = true;
  Kick();
}

// As in a ConnectX: an index, and eight bits that differ when the index is used again.
void Core::Add(Mr& mr) {
  size_t index = slots_.size();
  if (free_slots_.empty()) {
    slots_.emplace_back();
  } else {
    index = free_slots_.front();
    free_slots_.erase(free_slots_.begin());
  }
  Slot& slot = slots_[index];
  slot.key = static_cast<uint32_t>(index << 8) | ((slot.key + 1) & 0xffU);
  slot.mr = &mr;
  mr.lkey = mr.rkey = slot.key;
}

void Core::Forget(Mr& mr) {
  const size_t index = mr.lkey >> 8;
  if (index >= slots_.size() || slots_[index].mr != &mr) return;  // Its host was killed.
  slots_[index].mr = nullptr;
  free_slots_.push_back(index);
}

Mr* Core::FindMr(uint32_t key, const ibv_pd* pd, uint64_t address, uint64_t length, int access) const {
  const size_t index = key >> 8;
  if (index >= slots_.size() || slots_[index].mr == nullptr || slots_[index].key != key) return nullptr;
  Mr* mr = slots_[index].mr;
  if (mr->pd != pd || (mr->access & access) != access) return nullptr;
  if (address < mr->iova || length > mr->length || address - mr->iova > mr->length - length) return nullptr;
  return mr;
}

void Core::Push(Cq& cq, const Cqe& cqe, bool solicited) {
  if (cq.broken) return;
  if (cq.head - cq.tail == cq.ring.size()) return BreakCq(cq);
  cq.ring[cq.head++ % cq.ring.size()] = cqe;
  if (!cq.armed || (cq.solicited_only && !solicited)) return;
  Disarm(cq);
  if (cq.channel != nullptr) static_cast<Channel*>(cq.channel)->events.Push(&cq);
}

void Core::BreakCq(Cq& cq) {
  if (cq.broken) return;
  cq.broken = true;
  ibv_async_event event{};
  event.element.cq = &cq;
  event.event_type = IBV_EVENT_CQ_ERR;
  PushEvent(cq.context, event);
  for (auto& [id, qp] : static_cast<Context*>(cq.context)->owner->qps) {
    if (qp->send_cq == &cq || qp->recv_cq == &cq) Break(*qp);
  }
}

void Core::Break(Qp& qp) {
  if (qp.state == IBV_QPS_ERR || qp.state == IBV_QPS_RESET || qp.vanished) return;
  qp.state = IBV_QPS_ERR;
  Flush(qp);
  if (qp.srq != nullptr) PushQpEvent(qp, IBV_EVENT_QP_LAST_WQE_REACHED);
}

void Core::Flush(Qp& qp) {
  while (qp.done < qp.posted) {
    Send& send = qp.At(qp.done);
    send.status = IBV_WC_WR_FLUSH_ERR;
    Complete(qp, send);
  }
  qp.executed = qp.posted;
}

void Core::PushEvent(ibv_context* context, const ibv_async_event& event) {
  static_cast<Context*>(context)->events.Push(event);
}

void Core::PushQpEvent(Qp& qp, ibv_event_type type) {
  ibv_async_event event{};
  event.element.qp = &qp;
  event.event_type = type;
  PushEvent(qp.context, event);
}

void Core::Disarm(Cq& cq) {
  if (cq.armed) --armed_;
  cq.armed = false;
}

void Core::Arm(Cq& cq, bool solicited_only) {
  // The wider of two requests holds.
  cq.solicited_only = cq.armed ? cq.solicited_only && solicited_only : solicited_only;
  if (!cq.armed) ++armed_;
  cq.armed = true;
  Kick();
}

void Core::Sweep(Qp& qp, bool keep) {
  for (ibv_cq* each : {qp.send_cq, qp.recv_cq}) {
    Cq& cq = *static_cast<Cq*>(each);
    uint64_t write = cq.tail;
    for (uint64_t read = cq.tail; read < cq.head; ++read) {
      Cqe& cqe = cq.ring[read % cq.ring.size()];
      if (cqe.wc.qp_num == qp.qp_num) {
        if (!keep) continue;
        cqe.qp = nullptr;
      }
      if (write != read) cq.ring[write % cq.ring.size()] = cqe;
      ++write;
    }
    cq.head = write;
  }
}

Duration Core::DrawDelay(const Host& host) {
  const Duration base = host.own_delay ? host.delay : delay;
  const Duration range = host.own_delay ? host.jitter : jitter;
  if (range <= Duration::zero()) return base;
  return base + Duration(static_cast<int64_t>(random_() % static_cast<uint64_t>(range.count() + 1)));
}

}  // namespace weightcast::fake
