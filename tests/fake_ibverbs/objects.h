#pragma once

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "fake_ibverbs/fabric.h"

namespace weightcast::fake {

struct Device;
struct Host;

constexpr Duration kNever = Duration::max();

/// Whether an event is about one queue pair.
constexpr bool IsQpEvent(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
      return true;
    default:
      return false;
  }
}

/// Events with a descriptor that is readable while there are any, and for ever once they are closed.
template <typename T>
class EventQueue {
 public:
  EventQueue() : fd_(eventfd(0, EFD_CLOEXEC)) {}

  [[nodiscard]] int fd() const { return fd_.get(); }
  void Push(const T& event) {
    if (events_.empty()) eventfd_write(fd_.get(), 1);
    events_.push_back(event);
  }
  bool Pop(T& out) {
    if (events_.empty()) return false;
    out = events_.front();
    events_.erase(events_.begin());
    Settle();
    return true;
  }
  /// No event comes any more: who asks for one is told EIO.
  void Close() {
    closed_ = true;
    eventfd_write(fd_.get(), 1);
  }
  [[nodiscard]] bool closed() const { return closed_; }
  template <typename Predicate>
  void EraseIf(Predicate predicate) {
    if (std::erase_if(events_, predicate) > 0) Settle();
  }

 private:
  void Settle() {
    eventfd_t count = 0;
    if (events_.empty() && !closed_) eventfd_read(fd_.get(), &count);
  }
  bool closed_ = false;
  UniqueFd fd_;
  std::vector<T> events_;
};

struct Context : ibv_context {
  uint64_t id = 0;
  Device* owner = nullptr;
  int users = 0;
  EventQueue<ibv_async_event> events;
};

struct Pd : ibv_pd {
  uint64_t id = 0;
  int users = 0;
};

struct Mr : ibv_mr {
  uint64_t id = 0;
  int access = 0;
  uint64_t iova = 0;
  std::byte* memory = nullptr;
  void* mapping = nullptr;  ///< Ours, of a dmabuf.
  size_t mapping_length = 0;
  UniqueFd dmabuf;  ///< Kept, as the kernel keeps it, until the region is gone.
};

struct Channel : ibv_comp_channel {
  uint64_t id = 0;
  EventQueue<ibv_cq*> events;
};

struct Qp;

struct Cqe {
  ibv_wc wc{};
  Qp* qp = nullptr;    ///< Of a send; null once it is destroyed.
  uint64_t frees = 0;  ///< Of a send: slots of its queue up to here are free once it is polled.
};

struct Cq : ibv_cq {
  uint64_t id = 0;
  std::vector<Cqe> ring;
  uint64_t head = 0;  ///< Next to write.
  uint64_t tail = 0;  ///< Next to poll.
  int users = 0;
  bool armed = false;
  bool solicited_only = false;
  bool broken = false;
  uint32_t unacked = 0;
  uint32_t unacked_async = 0;
};

struct Receive {
  uint64_t wr_id = 0;
  int sges = 0;
};

struct Srq : ibv_srq {
  uint64_t id = 0;
  std::vector<Receive> ring;
  std::vector<ibv_sge> sges;
  uint32_t max_sge = 0;
  uint64_t head = 0;
  uint64_t tail = 0;
  int users = 0;
  uint32_t unacked_async = 0;
};

struct Send {
  uint64_t wr_id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  unsigned int flags = 0;
  __be32 imm = 0;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  int sges = 0;
  uint64_t length = 0;
  Duration due{};
  // Once executed:
  ibv_wc_status status = IBV_WC_SUCCESS;
  Duration acked{};
};

/// Slots of the send queue: freed <= done <= executed <= posted <= freed + capacity.
struct Qp : ibv_qp {
  uint64_t id = 0;
  Device* owner = nullptr;
  ibv_qp_attr attr{};
  ibv_qp_cap cap{};
  bool signal_all = false;
  bool active = false;    ///< In the list of those that have something to do.
  bool vanished = false;  ///< Its host was killed.
  std::vector<Send> ring;
  std::vector<ibv_sge> sges;
  std::vector<std::byte> inlined;
  uint64_t posted = 0;
  uint64_t executed = 0;
  uint64_t done = 0;
  uint64_t freed = 0;
  bool stalled = false;  ///< What was executed last has failed: nothing follows.
  bool endless = false;  ///< Waits with endless retries.
  int attempts = 0;
  int rnr_attempts = 0;
  Duration retry_at{};
  uint32_t next_psn = 0;
  uint32_t expected_psn = 0;
  uint32_t unacked_async = 0;

  Send& At(uint64_t slot) { return ring[slot % ring.size()]; }
  ibv_sge* SgesOf(uint64_t slot) { return sges.data() + (slot % ring.size()) * cap.max_send_sge; }
  std::byte* InlineOf(uint64_t slot) { return inlined.data() + (slot % ring.size()) * cap.max_inline_data; }
};

/// Objects of one kind by their number, so that what happens to all of them happens in the order of creation.
template <typename T>
class Pool {
 public:
  T* Add(std::unique_ptr<T> object, uint64_t id) {
    object->id = id;
    return (objects_[id] = std::move(object)).get();
  }
  /// Aborts unless it is one of ours that is alive.
  void Remove(T* object, const char* kind) {
    if (objects_.erase(object->id) == 1) return;
    std::fprintf(stderr, "fake_ibverbs: a %s is destroyed that is not alive\n", kind);
    std::abort();
  }
  [[nodiscard]] size_t size() const { return objects_.size(); }
  auto begin() { return objects_.begin(); }
  auto end() { return objects_.end(); }
  [[nodiscard]] auto begin() const { return objects_.begin(); }
  [[nodiscard]] auto end() const { return objects_.end(); }

 private:
  std::map<uint64_t, std::unique_ptr<T>> objects_;
};

struct Port {
  PortConfig config;
  Link link = Link::kUp;
  uint16_t lid = 0;
  std::vector<ibv_gid_entry> gids;
};

/// devices.cc
Port MakePort(const PortConfig& config, uint32_t number, const Device& device, unsigned device_index);

struct Device : ibv_device {
  Host* host = nullptr;
  DeviceConfig config;
  uint64_t guid = 0;
  std::vector<Port> ports;
  bool removed = false;
  Counters counters;  ///< Those that only grow.
  Pool<Context> contexts;
  Pool<Pd> pds;
  Pool<Mr> mrs;
  Pool<Channel> channels;
  Pool<Cq> cqs;
  Pool<Srq> srqs;
  Pool<Qp> qps;
};

/// One host and what a test lets go wrong there.
struct Host {
  int number = 0;
  std::vector<std::unique_ptr<Device>> devices;
  ibv_fork_status fork_status = IBV_FORK_UNNEEDED;
  bool dead = false;
  bool hold_out = false;
  bool hold_in = false;
  bool own_delay = false;
  Duration delay{};
  Duration jitter{};
  int drop_ack = 0;  ///< Counts down; at 1 the message is the one.
  size_t drop_landed = SIZE_MAX;
  struct Failure {
    int countdown = 0;
    int times = 0;
    int error = 0;
  };
  std::array<Failure, static_cast<size_t>(Call::kCount)> failures{};
  std::array<std::function<void()>, static_cast<size_t>(Call::kCount)> before;
};

}  // namespace weightcast::fake
