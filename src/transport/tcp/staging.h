#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "device/in_process.h"
#include "device/pinned.h"
#include "device/wake_signal.h"
#include "memory/memory.h"
#include "transport/tcp/local_region.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::transport::tcp {

/// What one transport uses of this process's devices, and the pinned blocks between device memory and
/// sockets, which all its lanes share. Made with the first device region. It keeps each device that it has
/// used to its own end, because the last holder of a device waits for the device's thread.
///
/// Both directions take from one pool. A block to receive into is free again once this process's own copy is
/// over; one to send from may wait for a peer. So one block is never given to a sender: receiving goes on
/// always, and with it the peers' sending.
class Staging {
 public:
  /// As device::DevicesInProcess.
  static Result<std::unique_ptr<Staging>> Create(const Settings& settings);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  /// The device of this memory, after the driver has confirmed what it is. Any thread that may block in the
  /// driver. Errors are those of device::Describe and Devices::Of.
  Result<const StagedDevice*> Use(const DescribedMemory& memory);

  // --- The holder of progress, which knows this by a region of a device
  [[nodiscard]] device::WakeSignal& signal() const { return *signal_; }
  [[nodiscard]] size_t block() const { return block_; }
  /// For a lane that has `held` blocks to send; nullptr: none for now. The fewer are free, the fewer a lane
  /// may hold, so that peers that take nothing do not hold all.
  std::byte* TakeForSending(size_t held);
  /// nullptr: none for now.
  std::byte* TakeForReceiving();
  void Give(std::byte* block);
  /// Whether TakeForSending would find one now.
  [[nodiscard]] bool CanSend(size_t held);
  /// Somebody without a block has found none, and nobody has since. Then lanes give up early what they fill:
  /// who waits for bytes of a peer must not hold up who sends, for whom that peer may wait.
  [[nodiscard]] bool hungry() const { return hungry_; }
  /// kExhausted: the driver pins too little for anything to go on. Ok otherwise.
  [[nodiscard]] Status failure() const;

 private:
  Staging(const Settings& settings, std::shared_ptr<device::Devices> devices,
          std::shared_ptr<device::WakeSignal> signal);

  const Settings settings_;
  const size_t block_;
  const size_t most_;  ///< Blocks.
  const std::shared_ptr<device::Devices> devices_;
  const std::shared_ptr<device::WakeSignal> signal_;
  mutable std::mutex mutex_;                         ///< Guards the next, and the making of the pool.
  std::vector<std::unique_ptr<StagedDevice>> used_;  ///< Their addresses stay.
  std::unique_ptr<device::PinnedPool> pool_;         ///< Before the first region is told.
  // The holder of progress's.
  std::byte* reserve_ = nullptr;  ///< Never for a sender.
  size_t taken_ = 0;
  bool hungry_ = false;
};

}  // namespace weightcast::transport::tcp
