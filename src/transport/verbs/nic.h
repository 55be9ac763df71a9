#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "drivers/ibverbs/ibverbs.h"
#include "transport/verbs/address.h"
#include "transport/verbs/lost_peers.h"
#include "transport/verbs/messages.h"
#include "transport/verbs/queue_owner.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::transport::verbs {

using drivers::Ibverbs;

/// One port of one RDMA device: its context, protection domain, completion queue, shared receive queue and
/// address. RegisterMemory and DeregisterMemory from any thread; the rest belongs to the holder of progress.
class Nic {
 public:
  /// `index`: among this process's NICs, as region keys name it.
  static Result<std::unique_ptr<Nic>> Open(std::shared_ptr<Ibverbs> api, ibv_device* device, uint8_t port,
                                           uint8_t index, const Settings& settings);
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;
  /// Its queue pairs and registrations are gone.
  ~Nic();

  /// "mlx5_0", or "mlx5_0:2" on a device with several ports.
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] uint8_t index() const { return index_; }
  [[nodiscard]] const Address& address() const { return address_; }
  [[nodiscard]] uint8_t gid_index() const { return gid_index_; }
  [[nodiscard]] uint16_t pkey_index() const { return pkey_index_; }
  [[nodiscard]] uint8_t port() const { return port_; }
  /// Its port is up and the device is alive.
  [[nodiscard]] bool up() const { return up_ && !dead_; }
  /// If it is not up.
  [[nodiscard]] const Status& why_down() const { return why_down_; }
  [[nodiscard]] const ibv_device_attr& limits() const { return limits_; }
  [[nodiscard]] Ibverbs& api() const { return *api_; }
  [[nodiscard]] ibv_pd* domain() const { return domain_; }
  [[nodiscard]] ibv_cq* completions() const { return completions_; }
  [[nodiscard]] ibv_srq* receives() const { return receives_; }
  /// Queue pairs here, of this process: at most kMaxQueues.
  [[nodiscard]] uint32_t queues() const { return static_cast<uint32_t>(by_number_.size()); }
  static constexpr uint32_t kMaxQueues = 1024;
  /// One could be neither destroyed nor stopped: the device may go on letting its peer write.
  void Lose() { ++lost_; }
  /// Peers may still reach memory that is registered there.
  [[nodiscard]] bool reachable() const { return !removed_ && queues() + lost_ > 0; }
  /// With so many more, over half of them are taken. The other half is given out two by two, one for control
  /// and one for data, so that 256 links find room whatever those before them took.
  [[nodiscard]] bool Crowded(uint32_t more) const { return queues() + more > kMaxQueues / 2; }

  // --- Memory
  /// kExhausted and kUnavailable say which limit was met and what to do.
  Result<ibv_mr*> RegisterMemory(std::byte* base, uint64_t length, int access) const;
  /// Device memory: from `offset` of a dma-buf on, or by its address, where that module of the kernel which
  /// knows device memory takes it (nvidia-peermem). `why_none`: why there is no dma-buf, and then `buffer` is
  /// -1.
  Result<ibv_mr*> RegisterDeviceMemory(std::byte* base, uint64_t length, int access, int buffer,
                                       uint64_t offset, std::string_view why_none) const;
  /// Not ok: the device may still let peers at it.
  [[nodiscard]] Status DeregisterMemory(ibv_mr* region) const;

  // --- Queue pairs that complete here
  /// The number under which its completions find it, upper half of a work request's id.
  uint32_t Attach(uint32_t queue_number);
  /// Before its first work request.
  void SetOwner(uint32_t queue_number, uint32_t id, QueueOwner& owner);
  /// `taken`: its room, given back once its completions cannot stand in the queue any more.
  void Detach(uint32_t queue_number, uint32_t id, uint32_t taken);
  /// Work requests that may go under way without the completion queue overflowing.
  [[nodiscard]] uint32_t room() const { return room_; }
  void TakeRoom(uint32_t count) { room_ -= count; }
  void GiveRoom(uint32_t count) { room_ += count; }

  /// Peers to which none of them could be connected.
  [[nodiscard]] LostPeers& lost_peers() { return lost_peers_; }

  // --- Progress
  /// Hands a bounded number of completions to their owners; whether there were any.
  bool Poll();
  /// Until there are none, unless it is being polled.
  void Drain();
  /// It is not used any more by this process.
  void Die(std::string_view reason);
  [[nodiscard]] bool dead() const { return dead_.load(std::memory_order_relaxed); }
  /// LookAtEvents has something to tell.
  [[nodiscard]] bool changed() const { return state() != told_; }
  /// Ports that went down or came up, devices that died or were removed. Returns whether any has since the
  /// last call.
  bool LookAtEvents();
  /// The kernel has taken the device away, and with it all that we had there.
  [[nodiscard]] bool removed() const { return removed_; }
  [[nodiscard]] int completion_fd() const { return channel_->fd; }
  [[nodiscard]] int event_fd() const { return context_->async_fd; }
  /// From here on completions make completion_fd readable; those that came before may not.
  Status Arm() const;
  void Disarm() const;

 private:
  static constexpr int kPollBatch = 32;
  static constexpr uint32_t kReceives = 1024;
  struct Slot {
    QueueOwner* owner = nullptr;
    uint32_t generation = 0;
  };

  Nic(std::shared_ptr<Ibverbs> api, uint8_t port, uint8_t index)
      : api_(std::move(api)), port_(port), index_(index) {}
  Status Init(ibv_device* device, const Settings& settings);
  Status MakeQueues();
  /// Whether the port is up, and under which address.
  void FindAddress();
  Status ReadAddress();
  Status PostReceives(uint32_t count);
  void Dispatch(const ibv_wc& completion);
  void OnReceived(const ibv_wc& completion);
  void OnEvent(const ibv_async_event& event);
  [[nodiscard]] QueueOwner* OwnerOf(const ibv_wc& completion) const;

  std::shared_ptr<Ibverbs> api_;
  uint8_t port_;
  uint8_t index_;
  std::string name_;
  std::string gid_setting_;
  std::string pkey_setting_;
  ibv_context* context_ = nullptr;
  ibv_device_attr limits_{};
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_srq* receives_ = nullptr;
  Address address_;
  uint8_t gid_index_ = 0;
  uint16_t pkey_index_ = 0;
  bool up_ = false;
  std::atomic<bool> dead_ = false;  ///< Read by any thread.
  bool polling_ = false;
  Status why_down_;
  LostPeers lost_peers_;
  bool removed_ = false;
  /// Now, and as LookAtEvents has told it.
  [[nodiscard]] std::array<bool, 3> state() const { return {up(), dead(), removed()}; }
  std::array<bool, 3> told_{};

  uint32_t room_ = 0;
  uint32_t lost_ = 0;
  uint32_t stale_ = 0;  ///< Of queue pairs that are gone: their completions may still stand in the queue.
  std::unordered_map<uint32_t, QueueOwner*> by_number_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;

  using Buffer = std::array<char, kMaxMessage>;
  /// Pages of their own: where fork is made safe, a child has none of those that are registered.
  std::unique_ptr<Buffer[], void (*)(void*)> buffers_{nullptr, &std::free};
  ibv_mr* buffers_region_ = nullptr;
  std::vector<uint32_t> free_buffers_;  ///< Not posted.
  std::vector<ibv_recv_wr> receive_requests_;
  std::vector<ibv_sge> receive_places_;
  std::array<ibv_wc, kPollBatch> polled_{};
};

/// The ports that the setting `nics` allows, in the devices' order, whether up or not. kUnavailable: none.
Result<std::vector<std::unique_ptr<Nic>>> OpenNics(const std::shared_ptr<Ibverbs>& api,
                                                   const Settings& settings);

}  // namespace weightcast::transport::verbs
