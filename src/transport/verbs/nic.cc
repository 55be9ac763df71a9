#include "transport/verbs/nic.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/log.h"
#include "base/strings.h"

namespace weightcast::transport::verbs {
namespace {

constexpr uint32_t kReceives = 1024;

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
  std::unique_ptr<Nic> nic(new Nic(std::move(api), port, index, settings));
  WC_RETURN_IF_ERROR(nic->Init(device));
  return nic;
}

Status Nic::Init(ibv_device* device) {
  WC_RETURN_IF_ERROR(device_.Open(device, port_.number()));
  const ibv_device_attr& limits = device_.limits();
  const uint32_t entries =
      std::min(CompletionQueue::kMost, static_cast<uint32_t>(std::max(limits.max_cqe, 0)));
  const uint32_t posted =
      std::min({kReceives, static_cast<uint32_t>(std::max(limits.max_srq_wr, 0)), entries / 2});
  if (posted == 0) {
    return Error(Code::kUnavailable, device_.name(), ": its queues are too short: ", limits.max_srq_wr,
                 " receives, ", entries, " completions (1 and 2 are needed); leave it out in setting nics");
  }
  WC_RETURN_IF_ERROR(domain_.Create());
  WC_RETURN_IF_ERROR(completions_.Create(entries));
  completions_.TakeRoom(posted);
  WC_RETURN_IF_ERROR(receives_.Create(domain_.handle(), posted));
  port_.Read();
  if (!up()) WC_LOG(kDebug, why_down().message());
  told_ = state();
  return Status::Ok();
}

bool Nic::Poll() {
  const std::span<const ibv_wc> polled = completions_.Poll();
  polling_ = true;
  for (const ibv_wc& completion : polled) Dispatch(completion);
  polling_ = false;
  if (!device_.dead()) {
    if (const Status posted = receives_.Repost(); !posted.ok()) device_.Die(posted.message());
  }
  return !polled.empty();
}

void Nic::Drain() {
  // Bounded: others' completions go on coming.
  constexpr uint32_t kTurns = CompletionQueue::kMost / CompletionQueue::kBatch;
  for (uint32_t turn = 0; turn < kTurns && !polling_ && !device_.dead(); ++turn) {
    if (!Poll()) return;
  }
}

void Nic::Dispatch(const ibv_wc& completion) {
  if ((completion.wr_id & ReceiveBuffers::kId) != 0) return OnReceived(completion);
  QueueOwner* const owner = queues_.OwnerById(static_cast<uint32_t>(completion.wr_id >> 32));
  if (owner == nullptr) return;  // Its queue pair is gone.
  const auto sequence = static_cast<uint32_t>(completion.wr_id);
  if (completion.status == IBV_WC_SUCCESS) return owner->OnSent(sequence);
  owner->OnSendError(sequence, CodeOf(completion.status),
                     StrCat(device_.name(), ": ", device_.api().StatusText(completion.status),
                            "; check that the peer runs, and the ports of both with ibv_devinfo"));
}

void Nic::OnReceived(const ibv_wc& completion) {
  const std::string_view message = receives_.Take(completion);
  QueueOwner* const owner = queues_.OwnerByNumber(completion.qp_num);
  if (owner == nullptr || completion.status != IBV_WC_SUCCESS) return;
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) return owner->OnImmediate(ntohl(completion.imm_data));
  owner->OnMessage(message);
}

bool Nic::LookAtEvents() {
  while (const auto event = device_.NextEvent()) OnEvent(*event);
  return state() != std::exchange(told_, state());
}

void Nic::OnEvent(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
      if (event.element.port_num == port_.number() && !device_.dead()) port_.OnChanged();
      return;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      if (QueueOwner* const owner = queues_.OwnerByNumber(event.element.qp->qp_num); owner != nullptr) {
        owner->OnBroken(Error(Code::kUnavailable, device_.name(), ": ",
                              device_.api().EventText(event.event_type),
                              "; see dmesg for this NIC, and the log of the peer"));
      }
      return;
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
      return device_.Die(StrCat(device_.name(), ": ", device_.api().EventText(event.event_type)));
    default:
      return;  // Nothing that changes what we do.
  }
}

}  // namespace weightcast::transport::verbs
