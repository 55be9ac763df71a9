#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "weightcast/status.h"

namespace weightcast::drivers {

/// The part of libibverbs that we use, as a table that a test can replace. Each function is libibverbs's own
/// of that name: arguments, results and errno as in its manual, `man ibv_post_send`. Objects that one table
/// has made belong to it and go back to it.
///
/// Threads: as libibverbs, every function from any thread; one object is destroyed by one.
class Ibverbs {
 public:
  virtual ~Ibverbs() = default;

  // --- Processes that fork
  /// IBV_FORK_DISABLED where this libibverbs cannot tell.
  virtual ibv_fork_status ForkStatus() = 0;
  /// Before the first registration of the process.
  virtual int ForkInit() = 0;

  // --- Devices
  virtual ibv_device** GetDeviceList(int* count) = 0;
  virtual void FreeDeviceList(ibv_device** list) = 0;
  virtual ibv_context* OpenDevice(ibv_device* device) = 0;
  virtual int CloseDevice(ibv_context* context) = 0;
  virtual int QueryDevice(ibv_context* context, ibv_device_attr* attr) = 0;
  virtual int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attr) = 0;
  /// One entry of a port's GID table, with its kind and its network interface. ENODATA: an empty entry.
  virtual int QueryGid(ibv_context* context, uint8_t port, uint32_t index, ibv_gid_entry* entry) = 0;
  /// One entry of an InfiniBand port's P_Key table.
  virtual int QueryPkey(ibv_context* context, uint8_t port, int index, __be16* key) = 0;
  /// Blocks unless context->async_fd was made non-blocking.
  virtual int GetAsyncEvent(ibv_context* context, ibv_async_event* event) = 0;
  virtual void AckAsyncEvent(ibv_async_event* event) = 0;

  // --- Memory
  virtual ibv_pd* AllocPd(ibv_context* context) = 0;
  virtual int DeallocPd(ibv_pd* pd) = 0;
  virtual ibv_mr* RegMr(ibv_pd* pd, void* address, size_t length, int access) = 0;
  /// EOPNOTSUPP where this libibverbs or this driver has none.
  virtual ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                              int access) = 0;
  virtual int DeregMr(ibv_mr* mr) = 0;

  // --- Queues
  virtual ibv_comp_channel* CreateCompChannel(ibv_context* context) = 0;
  virtual int DestroyCompChannel(ibv_comp_channel* channel) = 0;
  virtual ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) = 0;
  virtual int DestroyCq(ibv_cq* cq) = 0;
  /// Blocks unless channel->fd was made non-blocking.
  virtual int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) = 0;
  virtual void AckCqEvents(ibv_cq* cq, unsigned int count) = 0;
  virtual ibv_srq* CreateSrq(ibv_pd* pd, ibv_srq_init_attr* attr) = 0;
  virtual int DestroySrq(ibv_srq* srq) = 0;
  /// Writes what was granted into attr->cap.
  virtual ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attr) = 0;
  virtual int ModifyQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) = 0;
  virtual int QueryQp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) = 0;
  virtual int DestroyQp(ibv_qp* qp) = 0;

  // --- The data path: the provider's own functions, found through the object
  virtual int PostSend(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) = 0;
  virtual int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) = 0;
  virtual int PollCq(ibv_cq* cq, int entries, ibv_wc* out) = 0;
  virtual int ReqNotifyCq(ibv_cq* cq, bool solicited_only) = 0;

  // --- Words for a person
  [[nodiscard]] virtual std::string StatusText(ibv_wc_status status) const = 0;
  [[nodiscard]] virtual std::string EventText(ibv_event_type type) const = 0;
};

/// libibverbs.so.1 of this machine, loaded once. kUnavailable says what is missing and which package has it;
/// that a machine has the library does not mean that it has a device. Any thread.
Result<std::shared_ptr<Ibverbs>> LoadIbverbs();

}  // namespace weightcast::drivers
