#include "fake_ibverbs/fabric.h"

#include <algorithm>

#include "fake_ibverbs/core.h"
#include "fake_ibverbs/host.h"

namespace weightcast::fake {
namespace {

Host& Of(const drivers::Ibverbs& host) {
  return const_cast<FakeIbverbs&>(dynamic_cast<const FakeIbverbs&>(host)).host();
}

Device& Of(const drivers::Ibverbs& host, int device) {
  return *Of(host).devices.at(static_cast<size_t>(device));
}

void PushPortEvent(Core& core, Device& device, ibv_event_type type, uint8_t port) {
  ibv_async_event event{};
  event.element.port_num = port;
  event.event_type = type;
  for (auto& [id, context] : device.contexts) core.PushEvent(context.get(), event);
}

void InjectQps(Core& core, Device& device, ibv_event_type type, uint32_t qp_num) {
  for (auto& [id, qp] : device.qps) {
    if (qp_num != 0 && qp->qp_num != qp_num) continue;
    core.PushQpEvent(*qp, type);
    const bool fatal =
        type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR || type == IBV_EVENT_QP_ACCESS_ERR;
    if (fatal) core.Break(*qp);
  }
}

}  // namespace

Fabric::Fabric(Config config) : core_(std::make_shared<Core>(config)) {}
Fabric::~Fabric() = default;

std::shared_ptr<drivers::Ibverbs> Fabric::NewHost(const HostConfig& config) {
  const std::lock_guard lock(core_->mutex);
  return std::make_shared<FakeIbverbs>(core_, config);
}

Duration Fabric::Now() const {
  const std::lock_guard lock(core_->mutex);
  return core_->Now();
}

void Fabric::Advance(Duration duration) {
  const std::lock_guard lock(core_->mutex);
  core_->Advance(duration);
}

void Fabric::Run() {
  const std::lock_guard lock(core_->mutex);
  core_->Run();
}

void Fabric::Pump() {
  const std::lock_guard lock(core_->mutex);
  core_->Pump();
}

void Fabric::SetDelay(Duration base, Duration jitter) {
  const std::lock_guard lock(core_->mutex);
  core_->delay = base;
  core_->jitter = jitter;
}

void Fabric::SetDelay(const drivers::Ibverbs& host, Duration base, Duration jitter) {
  const std::lock_guard lock(core_->mutex);
  Of(host).own_delay = true;
  Of(host).delay = base;
  Of(host).jitter = jitter;
}

void Fabric::SetAckDelay(Duration delay) {
  const std::lock_guard lock(core_->mutex);
  core_->ack_delay = delay;
}

void Fabric::Shuffle(bool on) {
  const std::lock_guard lock(core_->mutex);
  core_->shuffle = on;
}

void Fabric::Hold(const drivers::Ibverbs& host, Direction direction) {
  const std::lock_guard lock(core_->mutex);
  Of(host).hold_out |= direction != Direction::kIn;
  Of(host).hold_in |= direction != Direction::kOut;
  core_->holds = true;
}

void Fabric::Release(const drivers::Ibverbs& host) {
  const std::lock_guard lock(core_->mutex);
  Of(host).hold_out = Of(host).hold_in = false;
  core_->holds = std::any_of(core_->hosts.begin(), core_->hosts.end(),
                             [](const Host* each) { return each->hold_out || each->hold_in; });
  core_->Kick();
}

void Fabric::DropAck(const drivers::Ibverbs& host, int nth, size_t landed) {
  const std::lock_guard lock(core_->mutex);
  Of(host).drop_ack = nth;
  Of(host).drop_landed = landed;
}

void Fabric::SetLink(const drivers::Ibverbs& host, int device, Link link, uint8_t port) {
  const std::lock_guard lock(core_->mutex);
  Device& owner = Of(host, device);
  Port& mine = owner.ports.at(port - 1U);
  const bool was_down = mine.link == Link::kDown;
  mine.link = link;
  const bool is_down = link == Link::kDown;
  if (was_down != is_down) {
    PushPortEvent(*core_, owner, is_down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE, port);
  }
  core_->Kick();
}

void Fabric::SetPort(const drivers::Ibverbs& host, int device, const PortConfig& config, uint8_t port) {
  const std::lock_guard lock(core_->mutex);
  Device& owner = Of(host, device);
  Port& mine = owner.ports.at(port - 1U);
  const Link link = mine.link;
  mine = MakePort(config, port, owner, static_cast<unsigned>(device));
  mine.link = link;
  PushPortEvent(*core_, owner, IBV_EVENT_GID_CHANGE, port);
  if (config.infiniband) PushPortEvent(*core_, owner, IBV_EVENT_LID_CHANGE, port);
}

void Fabric::Kill(const drivers::Ibverbs& host) {
  const std::lock_guard lock(core_->mutex);
  Of(host).dead = true;
  for (const auto& device : Of(host).devices) {
    for (auto& [id, qp] : device->qps) {
      core_->Forget(*qp);
      qp->vanished = true;
    }
    for (auto& [id, mr] : device->mrs) core_->Forget(*mr);
    for (auto& [id, cq] : device->cqs) core_->Disarm(*cq);
  }
}

void Fabric::Remove(const drivers::Ibverbs& host, int device) {
  const std::lock_guard lock(core_->mutex);
  Device& owner = Of(host, device);
  owner.removed = true;
  for (auto& [id, qp] : owner.qps) {
    core_->Forget(*qp);
    qp->vanished = true;
  }
  for (auto& [id, mr] : owner.mrs) core_->Forget(*mr);
  for (auto& [id, cq] : owner.cqs) core_->Disarm(*cq);
  PushPortEvent(*core_, owner, IBV_EVENT_DEVICE_FATAL, 1);
  for (auto& [id, channel] : owner.channels) channel->events.Close();
  for (auto& [id, context] : owner.contexts) context->events.Close();
}

void Fabric::Fail(const drivers::Ibverbs& host, Call call, int nth, int error, int times) {
  const std::lock_guard lock(core_->mutex);
  Of(host).failures[static_cast<size_t>(call)] = {.countdown = nth, .times = times, .error = error};
}

void Fabric::Before(const drivers::Ibverbs& host, Call call, std::function<void()> wait) {
  const std::lock_guard lock(core_->mutex);
  Of(host).before[static_cast<size_t>(call)] = std::move(wait);
}

void Fabric::Inject(const drivers::Ibverbs& host, int device, ibv_event_type type, uint32_t qp_num) {
  const std::lock_guard lock(core_->mutex);
  Device& owner = Of(host, device);
  if (IsQpEvent(type)) return InjectQps(*core_, owner, type, qp_num);
  if (type == IBV_EVENT_CQ_ERR) {
    for (auto& [id, cq] : owner.cqs) core_->BreakCq(*cq);
  } else if (type == IBV_EVENT_SRQ_ERR || type == IBV_EVENT_SRQ_LIMIT_REACHED) {
    for (auto& [id, srq] : owner.srqs) {
      ibv_async_event event{};
      event.element.srq = srq.get();
      event.event_type = type;
      core_->PushEvent(srq->context, event);
    }
  } else {
    PushPortEvent(*core_, owner, type, 1);
    if (type != IBV_EVENT_DEVICE_FATAL) return;
    for (auto& [id, qp] : owner.qps) core_->Break(*qp);
  }
}

Counters Fabric::CountersOf(const drivers::Ibverbs& host, int device) const {
  const std::lock_guard lock(core_->mutex);
  const Device& owner = Of(host, device);
  Counters counters = owner.counters;
  counters.contexts = static_cast<int>(owner.contexts.size());
  counters.pds = static_cast<int>(owner.pds.size());
  counters.mrs = static_cast<int>(owner.mrs.size());
  counters.channels = static_cast<int>(owner.channels.size());
  counters.cqs = static_cast<int>(owner.cqs.size());
  counters.srqs = static_cast<int>(owner.srqs.size());
  counters.qps = static_cast<int>(owner.qps.size());
  for (const auto& [id, qp] : owner.qps) {
    if (qp->state == IBV_QPS_RTS) counters.traffic_classes.insert(qp->attr.ah_attr.grh.traffic_class);
  }
  return counters;
}

}  // namespace weightcast::fake
