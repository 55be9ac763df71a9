#pragma once

#include <memory>
#include <string>
#include <utility>

#include "drivers/ibverbs/ibverbs.h"
#include "verbs_cluster/heap.h"

namespace weightcast::transport::verbs {

/// A host's libibverbs, whose heap is not counted and whose registrations and queues are.
class Metered final : public drivers::Ibverbs {
 public:
  explicit Metered(std::shared_ptr<drivers::Ibverbs> host) : host_(std::move(host)) {}
  [[nodiscard]] const drivers::Ibverbs& host() const { return *host_; }

  uint64_t registered = 0;  ///< Bytes, over all devices.
  int completions = 0;      ///< Entries of one device's queues.
  uint32_t receives = 0;

  ibv_fork_status ForkStatus() override { return Uncounted(&Ibverbs::ForkStatus); }
  int ForkInit() override { return Uncounted(&Ibverbs::ForkInit); }
  ibv_device** GetDeviceList(int* count) override { return Uncounted(&Ibverbs::GetDeviceList, count); }
  void FreeDeviceList(ibv_device** list) override { return Uncounted(&Ibverbs::FreeDeviceList, list); }
  ibv_context* OpenDevice(ibv_device* device) override { return Uncounted(&Ibverbs::OpenDevice, device); }
  int CloseDevice(ibv_context* context) override { return Uncounted(&Ibverbs::CloseDevice, context); }
  int QueryDevice(ibv_context* context, ibv_device_attr* attr) override {
    return Uncounted(&Ibverbs::QueryDevice, context, attr);
  }
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attr) override {
    return Uncounted(&Ibverbs::QueryPort, context, port, attr);
  }
  int QueryGid(ibv_context* context, uint8_t port, uint32_t index, ibv_gid_entry* entry) override {
    return Uncounted(&Ibverbs::QueryGid, context, port, index, entry);
  }
  int QueryPkey(ibv_context* context, uint8_t port, int index, __be16* key) override {
    return Uncounted(&Ibverbs::QueryPkey, context, port, index, key);
  }
  int GetAsyncEvent(ibv_context* context, ibv_async_event* event) override {
    return Uncounted(&Ibverbs::GetAsyncEvent, context, event);
  }
  void AckAsyncEvent(ibv_async_event* event) override { return Uncounted(&Ibverbs::AckAsyncEvent, event); }
  ibv_pd* AllocPd(ibv_context* context) override { return Uncounted(&Ibverbs::AllocPd, context); }
  int DeallocPd(ibv_pd* pd) override { return Uncounted(&Ibverbs::DeallocPd, pd); }
  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t length, int access) override {
    registered += length;
    return Uncounted(&Ibverbs::RegMr, pd, address, length, access);
  }
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                      int access) override {
    return Uncounted(&Ibverbs::RegDmabufMr, pd, offset, length, iova, fd, access);
  }
  int DeregMr(ibv_mr* mr) override {
    registered -= mr->length;
    return Uncounted(&Ibverbs::DeregMr, mr);
  }
  ibv_comp_channel* CreateCompChannel(ibv_context* context) override {
    return Uncounted(&Ibverbs::CreateCompChannel, context);
  }
  int DestroyCompChannel(ibv_comp_channel* channel) override {
    return Uncounted(&Ibverbs::DestroyCompChannel, channel);
  }
  ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) override {
    completions = entries;
    return Uncounted(&Ibverbs::CreateCq, context, entries, channel);
  }
  int DestroyCq(ibv_cq* cq) override { return Uncounted(&Ibverbs::DestroyCq, cq); }
  int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override {
    return Uncounted(&Ibverbs::GetCqEvent, channel, cq);
  }
  void AckCqEvents(ibv_cq* cq, unsigned int count) override {
    return Uncounted(&Ibverbs::AckCqEvents, cq, count);
  }
  ibv_srq* CreateSrq(ibv_pd* pd, ibv_srq_init_attr* attr) override {
    receives = attr->attr.max_wr;
    return Uncounted(&Ibverbs::CreateSrq, pd, attr);
  }
  int DestroySrq(ibv_srq* srq) override { return Uncounted(&Ibverbs::DestroySrq, srq); }
  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attr) override {
    return Uncounted(&Ibverbs::CreateQp, pd, attr);
  }
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) override {
    return Uncounted(&Ibverbs::ModifyQp, qp, attr, mask);
  }
  int QueryQp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) override {
    return Uncounted(&Ibverbs::QueryQp, qp, attr, mask, init);
  }
  int DestroyQp(ibv_qp* qp) override { return Uncounted(&Ibverbs::DestroyQp, qp); }
  int PostSend(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) override {
    return Uncounted(&Ibverbs::PostSend, qp, list, bad);
  }
  int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) override {
    return Uncounted(&Ibverbs::PostSrqRecv, srq, list, bad);
  }
  int PollCq(ibv_cq* cq, int entries, ibv_wc* out) override {
    return Uncounted(&Ibverbs::PollCq, cq, entries, out);
  }
  int ReqNotifyCq(ibv_cq* cq, bool solicited_only) override {
    return Uncounted(&Ibverbs::ReqNotifyCq, cq, solicited_only);
  }
  [[nodiscard]] std::string StatusText(ibv_wc_status status) const override {
    return host_->StatusText(status);
  }
  [[nodiscard]] std::string EventText(ibv_event_type type) const override { return host_->EventText(type); }

 private:
  template <typename Returned, typename... Parameters>
  Returned Uncounted(Returned (drivers::Ibverbs::*call)(Parameters...), Parameters... arguments) {
    const Scope scope(CountedHeap::provider);
    return (host_.get()->*call)(arguments...);
  }

  std::shared_ptr<drivers::Ibverbs> host_;
};

}  // namespace weightcast::transport::verbs
