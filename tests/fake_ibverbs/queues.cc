#include "fake_ibverbs/host.h"

namespace weightcast::fake {

ibv_comp_channel* FakeIbverbs::CreateCompChannel(ibv_context* context) {
  const std::lock_guard lock(core_->mutex);
  if (const int error = Refused(Call::kCreateCompChannel); error != 0) return Errno(error);
  auto channel = std::make_unique<Channel>();
  channel->context = context;
  channel->fd = channel->events.fd();
  channel->refcnt = 0;
  ++static_cast<Context*>(context)->users;
  return DeviceOf(context).channels.Add(std::move(channel), core_->NextId());
}

int FakeIbverbs::DestroyCompChannel(ibv_comp_channel* channel) {
  const std::lock_guard lock(core_->mutex);
  Channel& mine = *static_cast<Channel*>(channel);
  if (mine.refcnt > 0) return EBUSY;
  auto* context = static_cast<Context*>(mine.context);
  context->owner->channels.Remove(&mine, "completion channel");
  --context->users;
  return 0;
}

ibv_cq* FakeIbverbs::CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) {
  const std::lock_guard lock(core_->mutex);
  if (const int error = Refused(Call::kCreateCq); error != 0) return Errno(error);
  Device& device = DeviceOf(context);
  if (entries <= 0 || entries > device.config.max_cqe) return Errno(EINVAL);
  if (device.cqs.size() >= static_cast<size_t>(device.config.max_cq)) return Errno(ENOMEM);
  auto cq = std::make_unique<Cq>();
  cq->context = context;
  cq->channel = channel;
  cq->cqe = entries;
  cq->ring.resize(static_cast<size_t>(entries));
  if (channel != nullptr) ++channel->refcnt;
  ++static_cast<Context*>(context)->users;
  return device.cqs.Add(std::move(cq), core_->NextId());
}

int FakeIbverbs::DestroyCq(ibv_cq* cq) {
  std::unique_lock lock(core_->mutex);
  Cq& mine = *static_cast<Cq*>(cq);
  if (mine.users > 0) return EBUSY;
  core_->Disarm(mine);
  auto* context = static_cast<Context*>(mine.context);
  if (auto* channel = static_cast<Channel*>(mine.channel); channel != nullptr) {
    channel->events.EraseIf([&](const ibv_cq* event) { return event == &mine; });
    --channel->refcnt;
  }
  context->events.EraseIf([&](const ibv_async_event& event) {
    return event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == &mine;
  });
  AwaitAcks(lock, mine.unacked, "completion queue");
  AwaitAcks(lock, mine.unacked_async, "completion queue");
  context->owner->cqs.Remove(&mine, "completion queue");
  --context->users;
  return 0;
}

int FakeIbverbs::GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) {
  return GetEvent(core_->mutex, static_cast<Channel*>(channel)->events, cq,
                  [](ibv_cq* got) { ++static_cast<Cq*>(got)->unacked; });
}

void FakeIbverbs::AckCqEvents(ibv_cq* cq, unsigned int count) {
  const std::lock_guard lock(core_->mutex);
  static_cast<Cq*>(cq)->unacked -= count;
  core_->acked.notify_all();
}

ibv_srq* FakeIbverbs::CreateSrq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  const std::lock_guard lock(core_->mutex);
  if (const int error = Refused(Call::kCreateSrq); error != 0) return Errno(error);
  Device& device = DeviceOf(pd->context);
  const ibv_srq_attr& wanted = attr->attr;
  if (wanted.max_wr == 0 || wanted.max_wr > static_cast<uint32_t>(device.config.max_srq_wr)) {
    return Errno(EINVAL);
  }
  if (wanted.max_sge > static_cast<uint32_t>(device.config.max_sge)) return Errno(EINVAL);
  if (device.srqs.size() >= static_cast<size_t>(device.config.max_srq)) return Errno(ENOMEM);
  auto srq = std::make_unique<Srq>();
  srq->context = pd->context;
  srq->srq_context = attr->srq_context;
  srq->pd = pd;
  srq->max_sge = wanted.max_sge;
  srq->ring.resize(wanted.max_wr);
  srq->sges.resize(size_t{wanted.max_wr} * wanted.max_sge);
  ++static_cast<Pd*>(pd)->users;
  return device.srqs.Add(std::move(srq), core_->NextId());
}

int FakeIbverbs::DestroySrq(ibv_srq* srq) {
  std::unique_lock lock(core_->mutex);
  Srq& mine = *static_cast<Srq*>(srq);
  if (mine.users > 0) return EBUSY;
  static_cast<Context*>(mine.context)->events.EraseIf([&](const ibv_async_event& event) {
    const bool ours =
        event.event_type == IBV_EVENT_SRQ_ERR || event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED;
    return ours && event.element.srq == &mine;
  });
  AwaitAcks(lock, mine.unacked_async, "receive queue");
  auto* pd = static_cast<Pd*>(mine.pd);
  DeviceOf(mine.context).srqs.Remove(&mine, "receive queue");
  --pd->users;
  return 0;
}

}  // namespace weightcast::fake
