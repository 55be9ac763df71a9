#pragma once

#include <fcntl.h>
#include <poll.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <string>

#include "fake_ibverbs/core.h"

namespace weightcast::fake {

/// One host as the table of functions that its process would load.
class FakeIbverbs final : public drivers::Ibverbs {
 public:
  /// With the core's lock held.
  FakeIbverbs(std::shared_ptr<Core> core, const HostConfig& config);
  FakeIbverbs(const FakeIbverbs&) = delete;
  FakeIbverbs& operator=(const FakeIbverbs&) = delete;
  ~FakeIbverbs() override;

  Host& host() { return host_; }
  [[nodiscard]] const Host& host() const { return host_; }

  // devices.cc
  ibv_fork_status ForkStatus() override;
  int ForkInit() override;
  ibv_device** GetDeviceList(int* count) override;
  void FreeDeviceList(ibv_device** list) override;
  ibv_context* OpenDevice(ibv_device* device) override;
  int CloseDevice(ibv_context* context) override;
  int QueryDevice(ibv_context* context, ibv_device_attr* attr) override;
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attr) override;
  int QueryGid(ibv_context* context, uint8_t port, uint32_t index, ibv_gid_entry* entry) override;
  int QueryPkey(ibv_context* context, uint8_t port, int index, __be16* key) override;
  int GetAsyncEvent(ibv_context* context, ibv_async_event* event) override;
  void AckAsyncEvent(ibv_async_event* event) override;

  // memory.cc
  ibv_pd* AllocPd(ibv_context* context) override;
  int DeallocPd(ibv_pd* pd) override;
  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t length, int access) override;
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) override;
  int DeregMr(ibv_mr* mr) override;

  // queues.cc
  ibv_comp_channel* CreateCompChannel(ibv_context* context) override;
  int DestroyCompChannel(ibv_comp_channel* channel) override;
  ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) override;
  int DestroyCq(ibv_cq* cq) override;
  int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override;
  void AckCqEvents(ibv_cq* cq, unsigned int count) override;
  ibv_srq* CreateSrq(ibv_pd* pd, ibv_srq_init_attr* attr) override;
  int DestroySrq(ibv_srq* srq) override;

  // queue_pair.cc
  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attr) override;
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) override;
  int QueryQp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) override;
  int DestroyQp(ibv_qp* qp) override;

  // data_path.cc
  int PostSend(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) override;
  int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) override;
  int PollCq(ibv_cq* cq, int entries, ibv_wc* out) override;
  int ReqNotifyCq(ibv_cq* cq, bool solicited_only) override;

  [[nodiscard]] std::string StatusText(ibv_wc_status status) const override;
  [[nodiscard]] std::string EventText(ibv_event_type type) const override;

 private:
  /// What Fabric::Before asks for.
  void Wait(Call call);
  /// The errno of a planned failure; 0: go on. Lock held.
  int Planned(Call call);
  /// Also of a dead host.
  int Refused(Call call);
  /// Also at a device that was removed.
  int Refused(Call call, const Device& device);
  /// Waits until nobody owes an acknowledgement for `object`.
  void AwaitAcks(std::unique_lock<std::mutex>& lock, const uint32_t& owed, const char* kind);
  int CheckMr(const Pd& pd, size_t length, int access, Call call);
  ibv_mr* AddMr(Pd& pd, std::unique_ptr<Mr> mr);
  ibv_mr* RegPeerMemory(Pd& pd, uint64_t address, size_t length, int access);
  ibv_mr* RegMapped(Pd& pd, uint64_t offset, size_t length, uint64_t iova, UniqueFd fd, int access);
  int PostOne(Qp& qp, const ibv_send_wr& request);

  std::shared_ptr<Core> core_;
  Host host_;
};

inline Device& DeviceOf(const ibv_context* context) { return *static_cast<const Context*>(context)->owner; }

/// Sets errno as a function that returns a pointer does.
inline std::nullptr_t Errno(int error) {
  errno = error;
  return nullptr;
}

/// The next event of a queue; waits for it unless its descriptor is non-blocking. `taken` runs under the
/// lock.
template <typename T, typename Taken>
int GetEvent(std::mutex& mutex, EventQueue<T>& queue, T* out, Taken taken) {
  while (true) {
    {
      const std::lock_guard lock(mutex);
      if (queue.Pop(*out)) {
        taken(*out);
        return 0;
      }
      if (queue.closed()) {
        errno = EIO;
        return -1;
      }
    }
    if ((fcntl(queue.fd(), F_GETFL) & O_NONBLOCK) != 0) {
      errno = EAGAIN;
      return -1;
    }
    pollfd wait{.fd = queue.fd(), .events = POLLIN, .revents = 0};
    if (poll(&wait, 1, -1) < 0) return -1;
  }
}

}  // namespace weightcast::fake
