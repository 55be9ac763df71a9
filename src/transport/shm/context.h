#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/poller.h"
#include "device/copy_queue.h"
#include "transport/event_queue.h"
#include "transport/shm/device_side.h"
#include "transport/shm/peer_regions.h"
#include "transport/shm/ptracer.h"
#include "transport/shm/regions.h"
#include "transport/shm/shared_memory.h"

namespace weightcast::transport::shm {

/// What a descriptor in the poller is: the upper half of its key; the lower half is a number of its kind.
enum class PollKind : uint32_t {
  kWake,
  kListener,
  kTimer,
  kStranger,
  kChannel,
  kProcess,
  kDevice,
  kDeparted
};
inline uint64_t PollKey(PollKind kind, uint32_t number) { return static_cast<uint64_t>(kind) << 32 | number; }

/// Who copies host memory that the other side cannot map. Tests force what the system or the load decides.
enum class CrossCopies : uint8_t {
  kOff,       ///< The ring instead, as where the system forbids cross-process copy.
  kEither,    ///< The writer, or the target where that lets more processors work.
  kByTarget,  ///< The target wherever it can.
};

/// What the links of one transport object share.
struct Context {
  Context(Incarnation own, CrossCopies of_copies_across, Ptracer& of_process, Ptracer::Policy policy,
          Poller own_poller, SharedPages fence, const device::CopyQueueOptions& of_copies)
      : self(own),
        cross_copies(of_copies_across),
        ptracer(of_process),
        ptracer_policy(policy),
        poller(std::move(own_poller)),
        fence_pages(std::move(fence)),
        copies(of_copies),
        regions(own, *fence_pages.mapping.As<FencePage>()) {}

  Incarnation self;
  const CrossCopies cross_copies;
  Ptracer& ptracer;
  Ptracer::Policy ptracer_policy;
  Poller poller;
  SharedPages fence_pages;
  device::CopyQueueOptions copies;  ///< Of all links.
  Regions regions;
  PeerRegions peer_regions;
  EventQueue events;
  uint64_t copied = 0;  ///< Bytes moved through mappings, for guessing what the caches hold.
  size_t senders = 0;   ///< Links with operations of this side, as of the last turn.

  /// This process's devices; nullptr while no device memory is registered here. Any thread.
  [[nodiscard]] DeviceSide* devices() const { return devices_seen.load(std::memory_order_acquire); }
  /// Makes them at the first call. Any thread that may block in the driver.
  Result<DeviceSide*> MakeDevices(const Settings& settings);

  std::mutex devices_mutex;  ///< Guards the making of the next.
  std::unique_ptr<DeviceSide> devices_made;
  std::atomic<DeviceSide*> devices_seen{nullptr};
};

/// How much one turn may do before it yields to others.
struct Budget {
  uint64_t bytes = 0;
  uint32_t operations = 0;
};

/// Most bytes copied under one busy mark: a revoke waits no longer than such a copy. Half as long, a
/// cross-process copy loses 5% to what each of its calls costs; twice as long, nothing is gained.
inline constexpr uint64_t kPieceBytes = 512 * 1024;
/// Most bytes moved by one turn and by what is posted until the next: a caller who writes no more than this
/// moves it itself, inside Post. To wake another thread for it costs 5 µs; these take 20 to 100.
inline constexpr uint64_t kAtOnceBytes = 2 * kPieceBytes;

}  // namespace weightcast::transport::shm
