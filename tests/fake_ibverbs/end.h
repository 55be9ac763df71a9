#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fake_ibverbs/fabric.h"

namespace weightcast::fake {

struct EndOptions {
  int device = 0;
  uint32_t send_wr = 16;
  int cq_entries = 64;
  uint32_t receives = 16;
  size_t bytes = 65536;
  int region_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  unsigned qp_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  uint8_t timeout = 14;
  uint8_t retry_cnt = 2;
  uint8_t rnr_retry = 7;
  uint8_t min_rnr_timer = 12;  ///< 0.64 ms.
  uint8_t gid_index = 1;
  ibv_mtu mtu = IBV_MTU_4096;
};

/// One end of a connection with one of each object, as a test wants it.
struct End {
  explicit End(std::shared_ptr<drivers::Ibverbs> table, EndOptions wanted = {})
      : verbs(std::move(table)), options(wanted), memory(wanted.bytes) {
    ibv_device** list = verbs->GetDeviceList(nullptr);
    context = verbs->OpenDevice(list[options.device]);
    verbs->FreeDeviceList(list);
    fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
    pd = verbs->AllocPd(context);
    mr = verbs->RegMr(pd, memory.data(), memory.size(), options.region_access);
    channel = verbs->CreateCompChannel(context);
    fcntl(channel->fd, F_SETFL, O_NONBLOCK);
    cq = verbs->CreateCq(context, options.cq_entries, channel);
    ibv_srq_init_attr receive{};
    receive.attr = {.max_wr = options.receives, .max_sge = 1, .srq_limit = 0};
    srq = verbs->CreateSrq(pd, &receive);
    qp = NewQp();
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() {
    while (Event().has_value()) {
    }
    EXPECT_EQ(qp != nullptr ? verbs->DestroyQp(qp) : 0, 0);
    EXPECT_EQ(verbs->DestroySrq(srq), 0);
    EXPECT_EQ(verbs->DestroyCq(cq), 0);
    EXPECT_EQ(verbs->DestroyCompChannel(channel), 0);
    EXPECT_EQ(mr != nullptr ? verbs->DeregMr(mr) : 0, 0);
    EXPECT_EQ(verbs->DeallocPd(pd), 0);
    EXPECT_EQ(verbs->CloseDevice(context), 0);
  }

  ibv_qp* NewQp(bool signal_all = false) {
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq;
    attr.srq = srq;
    attr.qp_type = IBV_QPT_RC;
    attr.sq_sig_all = signal_all ? 1 : 0;
    attr.cap = {.max_send_wr = options.send_wr,
                .max_recv_wr = 0,
                .max_send_sge = 2,
                .max_recv_sge = 0,
                .max_inline_data = 64};
    return verbs->CreateQp(pd, &attr);
  }

  // --- Connecting
  int ToInit(ibv_qp* which) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = options.qp_access;
    return verbs->ModifyQp(which, &attr,
                           IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }
  ibv_qp_attr RtrTo(End& peer, const ibv_qp* which) {
    ibv_port_attr port{};
    verbs->QueryPort(context, 1, &port);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = options.mtu;
    attr.dest_qp_num = which->qp_num;
    attr.rq_psn = 1000;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = options.min_rnr_timer;
    attr.ah_attr.port_num = 1;
    if (port.link_layer == IBV_LINK_LAYER_INFINIBAND) {
      ibv_port_attr theirs{};
      peer.verbs->QueryPort(peer.context, 1, &theirs);
      attr.ah_attr.dlid = theirs.lid;
    } else {
      ibv_gid_entry entry{};
      peer.verbs->QueryGid(peer.context, 1, options.gid_index, &entry);
      attr.ah_attr.is_global = 1;
      attr.ah_attr.grh.dgid = entry.gid;
      attr.ah_attr.grh.sgid_index = options.gid_index;
    }
    return attr;
  }
  static constexpr int kRtrMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  static constexpr int kRtsMask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  int ToRts(ibv_qp* which) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = options.timeout;
    attr.retry_cnt = options.retry_cnt;
    attr.rnr_retry = options.rnr_retry;
    attr.sq_psn = 1000;
    attr.max_rd_atomic = 1;
    return verbs->ModifyQp(which, &attr, kRtsMask);
  }
  int ConnectTo(End& peer, ibv_qp* mine, const ibv_qp* theirs) {
    ibv_qp_attr rtr = RtrTo(peer, theirs);
    if (const int error = ToInit(mine); error != 0) return error;
    if (const int error = verbs->ModifyQp(mine, &rtr, kRtrMask); error != 0) return error;
    return ToRts(mine);
  }
  int SetState(ibv_qp_state state) {
    ibv_qp_attr attr{};
    attr.qp_state = state;
    return verbs->ModifyQp(qp, &attr, IBV_QP_STATE);
  }
  ibv_qp_state State() {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(verbs->QueryQp(qp, &attr, IBV_QP_STATE, &init), 0);
    return attr.qp_state;
  }

  // --- Moving
  struct Request {
    ibv_sge sge{};
    ibv_send_wr wr{};
  };
  /// `length` bytes from the start of our memory to `offset` of the peer's; `wr_id` is the length.
  Request To(const End& peer, ibv_wr_opcode opcode, size_t length, size_t offset = 0) {
    Request request;
    request.sge = {reinterpret_cast<uint64_t>(memory.data()), static_cast<uint32_t>(length), mr->lkey};
    request.wr.wr_id = length;
    request.wr.num_sge = 1;
    request.wr.opcode = opcode;
    request.wr.send_flags = IBV_SEND_SIGNALED;
    request.wr.imm_data = 0x01020304;
    request.wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(peer.memory.data()) + offset;
    request.wr.wr.rdma.rkey = peer.mr != nullptr ? peer.mr->rkey : 0;
    return request;
  }
  int Post(Request& request, ibv_qp* which = nullptr) {
    request.wr.sg_list = &request.sge;
    ibv_send_wr* bad = nullptr;
    return verbs->PostSend(which != nullptr ? which : qp, &request.wr, &bad);
  }
  int Write(const End& peer, size_t length, size_t offset = 0) {
    Request request = To(peer, IBV_WR_RDMA_WRITE, length, offset);
    return Post(request);
  }
  int PostReceive(uint64_t wr_id, size_t offset = 0, size_t length = 0) {
    ibv_sge sge{reinterpret_cast<uint64_t>(memory.data()) + offset, static_cast<uint32_t>(length), mr->lkey};
    ibv_recv_wr request{.wr_id = wr_id, .next = nullptr, .sg_list = &sge, .num_sge = length > 0 ? 1 : 0};
    ibv_recv_wr* bad = nullptr;
    return verbs->PostSrqRecv(srq, &request, &bad);
  }
  std::vector<ibv_wc> Poll() {
    std::vector<ibv_wc> out(256);
    out.resize(static_cast<size_t>(verbs->PollCq(cq, 256, out.data())));
    return out;
  }
  std::vector<ibv_wc_status> Statuses() {
    std::vector<ibv_wc_status> out;
    for (const ibv_wc& wc : Poll()) out.push_back(wc.status);
    return out;
  }
  /// The next asynchronous event, acknowledged.
  std::optional<ibv_event_type> Event() {
    ibv_async_event event{};
    if (verbs->GetAsyncEvent(context, &event) != 0) return std::nullopt;
    verbs->AckAsyncEvent(&event);
    return event.event_type;
  }
  void Fill(char byte) { std::fill(memory.begin(), memory.end(), byte); }
  [[nodiscard]] std::string Text(size_t offset, size_t length) const {
    return {memory.begin() + static_cast<ptrdiff_t>(offset),
            memory.begin() + static_cast<ptrdiff_t>(offset + length)};
  }

  std::shared_ptr<drivers::Ibverbs> verbs;
  EndOptions options;
  std::vector<char> memory;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_mr* mr = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_srq* srq = nullptr;
  ibv_qp* qp = nullptr;
};

/// Two hosts in virtual time with a connection between them.
struct Wired {
  explicit Wired(EndOptions options = {}, const HostConfig& config = {})
      : a(fabric.NewHost(config), options), b(fabric.NewHost(config), options) {
    EXPECT_EQ(a.ConnectTo(b, a.qp, b.qp), 0);
    EXPECT_EQ(b.ConnectTo(a, b.qp, a.qp), 0);
    a.Fill('a');
    b.Fill('b');
  }
  Fabric fabric{{.virtual_time = true}};
  End a;
  End b;
};

}  // namespace weightcast::fake
