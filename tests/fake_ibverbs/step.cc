#include <algorithm>

#include "fake_ibverbs/core.h"

namespace weightcast::fake {
namespace {

ibv_wc_opcode CompletionOf(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    default:
      return IBV_WC_SEND;
  }
}

/// What the manual leaves undefined in a failed completion.
constexpr auto kNonsenseOpcode = static_cast<ibv_wc_opcode>(0x5e);
constexpr uint32_t kNonsenseLength = 0xdeadbeef;

bool Idle(const Qp& qp) { return qp.done == qp.posted; }

}  // namespace

void Core::Complete(Qp& qp, const Send& send) {
  const uint64_t slot = qp.done++;
  const bool failed = send.status != IBV_WC_SUCCESS;
  if (!failed && !qp.signal_all && (send.flags & IBV_SEND_SIGNALED) == 0) return;
  Cqe cqe{.qp = &qp, .frees = slot + 1};
  cqe.wc.wr_id = send.wr_id;
  cqe.wc.status = send.status;
  cqe.wc.qp_num = qp.qp_num;
  cqe.wc.opcode = failed ? kNonsenseOpcode : CompletionOf(send.opcode);
  cqe.wc.byte_len = failed ? kNonsenseLength : static_cast<uint32_t>(send.length);
  cqe.wc.vendor_err = failed ? 0x88 : 0;
  Push(*static_cast<Cq*>(qp.send_cq), cqe, failed);
  if (failed) Break(qp);
}

bool Core::Held(const Qp& qp) const {
  if (qp.owner->host->hold_out) return true;
  const Qp* peer = Find(qp.attr.dest_qp_num);
  return peer != nullptr && peer->owner->host->hold_in;
}

bool Core::Step(Qp& qp, Duration now, bool one_message) {
  bool moved = false;
  while (true) {
    while (qp.done < qp.executed && qp.At(qp.done).acked <= now) {
      moved = true;
      Complete(qp, qp.At(qp.done));
    }
    if (qp.state != IBV_QPS_RTS || qp.stalled || qp.executed == qp.posted) return moved;
    if (std::max(qp.At(qp.executed).due, qp.retry_at) > now) return moved;
    if ((holds && Held(qp)) || (moved && one_message)) return moved;
    moved = true;
    Execute(qp, now);
  }
}

Duration Core::NextAt(Qp& qp) const {
  Duration next = qp.done < qp.executed ? qp.At(qp.done).acked : kNever;
  if (qp.state != IBV_QPS_RTS || qp.stalled || qp.executed == qp.posted) return next;
  if (holds && Held(qp)) return next;
  return std::min(next, std::max(qp.At(qp.executed).due, qp.retry_at));
}

Duration Core::NextOfAll(bool endless_too) const {
  Duration next = kNever;
  for (Qp* qp : active_) {
    if (qp->endless && !endless_too && qp->done == qp->executed) {
      const Qp* peer = Reach(*qp);
      const auto* srq = peer != nullptr ? static_cast<const Srq*>(peer->srq) : nullptr;
      if (srq == nullptr || srq->head == srq->tail) continue;
    }
    next = std::min(next, NextAt(*qp));
  }
  return next;
}

void Core::StepAll(Duration now) {
  if (shuffle) {
    while (StepShuffled(now)) {
    }
  } else {
    // Steps only make queue pairs idle: the list does not grow under the loop.
    for (Qp* qp : active_) Step(*qp, now, false);
  }
  std::erase_if(active_, [](Qp* qp) {
    qp->active = !Idle(*qp);
    return !qp->active;
  });
}

bool Core::StepShuffled(Duration now) {
  const size_t count = active_.size();
  if (count == 0) return false;
  const size_t first = random_() % count;
  for (size_t i = 0; i < count; ++i) {
    if (Step(*active_[(first + i) % count], now, true)) return true;
  }
  return false;
}

void Core::Pump() {
  if (!active_.empty()) StepAll(Now());
}

void Core::Advance(Duration duration) {
  const Duration until = now_ + duration;
  while (true) {
    const Duration next = NextOfAll(true);
    if (next > until) break;
    now_ = std::max(now_, next);
    StepAll(now_);
  }
  now_ = until;
}

void Core::Run() {
  while (true) {
    const Duration next = NextOfAll(false);
    if (next == kNever) break;
    now_ = std::max(now_, next);
    StepAll(now_);
  }
}

void Core::Kick() {
  if (thread_.joinable() && armed_ > 0) kicked_.notify_one();
}

void Core::Background() {
  std::unique_lock lock(mutex);
  while (!stop_) {
    const Duration next = armed_ > 0 ? NextOfAll(true) : kNever;
    if (next == kNever) {
      kicked_.wait(lock);
    } else if (next > Now()) {
      kicked_.wait_until(lock, start_ + next);
    } else {
      StepAll(Now());
    }
  }
}

}  // namespace weightcast::fake
