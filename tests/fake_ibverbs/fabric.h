#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "drivers/ibverbs/ibverbs.h"

namespace weightcast::fake {

using Duration = std::chrono::nanoseconds;

struct PortConfig {
  int rail = 0;  ///< Ports of one number reach each other.
  bool infiniband = false;
  uint16_t lid = 0;                          ///< InfiniBand. 0: one of its own.
  uint64_t subnet_prefix = 0xfe80ULL << 48;  ///< InfiniBand.
  std::vector<uint16_t> pkeys{0xffff};       ///< InfiniBand.
  bool grh_required = false;                 ///< InfiniBand: as a virtual function says of its port.
  std::string ipv4{};                        ///< RoCE. Empty: 10.<rail>.<device>.<host + 1>.
  bool roce_v1 = false;  ///< Each GID once more, before, as RoCE v1: the table of a ConnectX.
  uint32_t ifindex = 1;  ///< RoCE: ndev_ifindex of its GIDs.
  ibv_mtu mtu = IBV_MTU_4096;
  uint8_t active_width = 2;   ///< 2: four lanes.
  uint8_t active_speed = 32;  ///< 32: EDR, 25 Gb/s a lane; 128: NDR.
};

/// Defaults are small enough that a test meets them.
struct DeviceConfig {
  std::string name = "fake0";
  std::string ibdev_path{};  ///< Empty: /sys/class/infiniband/<name>.
  std::vector<PortConfig> ports{PortConfig{}};
  int max_qp = 1024;
  int max_qp_wr = 16384;
  int max_cq = 1024;
  int max_cqe = 32767;
  int max_mr = 65536;
  uint64_t max_mr_size = UINT64_MAX;
  int max_pd = 1024;
  int max_srq = 1024;
  int max_srq_wr = 32767;
  int max_sge = 32;
  uint32_t max_inline = 512;
  uint32_t max_msg_sz = 1U << 31;
  uint8_t max_rd_atom = 16;
  int completion_vectors = 2;
  /// RegDmabufMr takes the descriptors of tests/fake_cuda, and any that mmap takes. False: EOPNOTSUPP.
  bool dmabuf = false;
  /// As nvidia-peermem: what RegMr asks of memory that the processor cannot reach. A descriptor as a
  /// dma-buf's, of whole pages, or -1. Null: there is no such module.
  std::function<int(uint64_t address, size_t length)> peermem{};
  /// Send queues get the next power of two less one, as soft-RoCE does; else exactly what was asked for.
  bool rounds_up = false;
  /// DestroyQp leaves completions of the queue pair in its queues, as soft-RoCE does; a ConnectX sweeps them.
  bool keeps_completions = false;
};

struct HostConfig {
  std::vector<DeviceConfig> devices{DeviceConfig{}};
  ibv_fork_status fork_status = IBV_FORK_UNNEEDED;  ///< Before the host has called ForkInit.
};

struct Config {
  /// Nothing moves but in Advance and Run. Else time is real, and whoever polls a completion queue moves all.
  bool virtual_time = false;
  /// Real time only: a thread moves packets while any completion queue is armed, so that sleepers are woken.
  bool background = false;
  /// For delays, for the order in Shuffle and for first keys.
  uint64_t seed = 1;
};

struct Counters {
  uint64_t bytes_sent = 0;  ///< Payload that has landed elsewhere, or that a read has fetched from here.
  uint64_t bytes_received = 0;
  uint64_t messages_sent = 0;  ///< A read counts where it was posted.
  uint64_t messages_received = 0;
  uint64_t posted = 0;  ///< Work requests taken by PostSend.
  uint64_t retries = 0;
  uint64_t rnr_naks = 0;                   ///< Messages that found no receive here.
  std::set<uint8_t> traffic_classes = {};  ///< Of the connected queue pairs that are alive now.
  // Alive now:
  int contexts = 0;
  int pds = 0;
  int mrs = 0;
  int channels = 0;
  int cqs = 0;
  int srqs = 0;
  int qps = 0;
};

enum class Link {
  kUp,
  kDown,  ///< The port says so: IBV_EVENT_PORT_ERR.
  kCut,   ///< A cable further away: nobody is told.
};

enum class Direction { kOut, kIn, kBoth };

/// What can be made to fail.
enum class Call {
  kForkInit,
  kGetDeviceList,
  kOpenDevice,
  kQueryDevice,
  kQueryPort,
  kQueryGid,
  kAllocPd,
  kRegMr,
  kRegDmabufMr,
  kDeregMr,
  kCreateCompChannel,
  kCreateCq,
  kCreateSrq,
  kCreateQp,
  kModifyQp,
  kConnectQp,  ///< ModifyQp to RTR, where the kernel looks for the peer.
  kDestroyQp,
  kPostSend,
  kPostSrqRecv,
  kReqNotifyCq,
  kCount,
};

class Core;

/// A network of hosts with RDMA devices inside one process. Each host is a table of libibverbs whose devices
/// do what reliable connections do: order and checks of the state machine, protection, retries, flushes,
/// events.
///
/// A message takes its turn in its queue pair: it leaves after the set delay, lands as one memcpy, and is
/// completed after the delay of acknowledgements. Between queue pairs there is no order; without Shuffle
/// they take turns as they became busy.
///
/// Stricter than hardware: CloseDevice refuses (EBUSY) while objects are left; destroying what has events
/// that were got and not acknowledged aborts after 10 s; so does a call with an object that is not alive. A
/// failed completion has nonsense in the fields that the manual leaves undefined.
///
/// Threads: everything from any thread; one lock for all. A host may outlive the Fabric.
class Fabric {
 public:
  explicit Fabric(Config config = {});
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;
  ~Fabric();

  std::shared_ptr<drivers::Ibverbs> NewHost(const HostConfig& config = {});

  // --- Time
  [[nodiscard]] Duration Now() const;
  /// Virtual time only. Moves time on, step by step from one thing that happens to the next.
  void Advance(Duration duration);
  /// Virtual time only. Moves time on until nothing is under way but what waits for somebody: a held host, a
  /// receive with endless retries.
  void Run();
  /// Real time without a poll: moves whatever is due.
  void Pump();

  // --- Faults. A host is one that NewHost made here; devices count from 0, ports from 1.
  /// For messages posted from now on: `base` plus up to `jitter`. In order within one queue pair all the
  /// same.
  void SetDelay(Duration base, Duration jitter = {});
  void SetDelay(const drivers::Ibverbs& host, Duration base, Duration jitter = {});
  /// Between landing and completion.
  void SetAckDelay(Duration delay);
  /// Which queue pair moves next is drawn for every message.
  void Shuffle(bool on);
  /// Messages out of (or into) a host stay where they are; no timer runs for them. Until Release.
  void Hold(const drivers::Ibverbs& host, Direction direction = Direction::kBoth);
  void Release(const drivers::Ibverbs& host);
  /// The nth message (1: the next) that leaves this host lands, with its immediate, and its acknowledgement
  /// never comes: RETRY_EXC. With `landed` less than its length only its first bytes land, and no immediate.
  void DropAck(const drivers::Ibverbs& host, int nth = 1, size_t landed = SIZE_MAX);
  void SetLink(const drivers::Ibverbs& host, int device, Link link, uint8_t port = 1);
  /// The port has another address, or MTU, and says so: GID_CHANGE, and on InfiniBand LID_CHANGE.
  void SetPort(const drivers::Ibverbs& host, int device, const PortConfig& config, uint8_t port = 1);
  /// The process is dead: its queue pairs and regions are gone without a word, what it had posted never
  /// moves. Of its own calls those that make or post something fail with EIO; the others work, so that it can
  /// be taken down.
  void Kill(const drivers::Ibverbs& host);
  /// The device is taken out of the machine: its queue pairs and regions are gone, DEVICE_FATAL comes, and
  /// then its descriptors are readable for ever and reading gives EIO, as do calls for its port, regions and
  /// queue pairs.
  void Remove(const drivers::Ibverbs& host, int device);
  /// The nth such call (1: the next) and the `times` - 1 after it fail with this errno.
  void Fail(const drivers::Ibverbs& host, Call call, int nth, int error, int times = 1);
  /// From now on such calls run this first, without the lock of the network: a call that takes long. Of
  /// kDeregMr and kConnectQp.
  void Before(const drivers::Ibverbs& host, Call call, std::function<void()> wait);
  /// An asynchronous event at every context of the device; those of queue pairs, completion queues and
  /// receive queues at each such object (`qp_num`: at this queue pair). QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR,
  /// CQ_ERR and DEVICE_FATAL break what they name.
  void Inject(const drivers::Ibverbs& host, int device, ibv_event_type type, uint32_t qp_num = 0);

  [[nodiscard]] Counters CountersOf(const drivers::Ibverbs& host, int device) const;

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace weightcast::fake
