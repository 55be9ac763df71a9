#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "device/worker.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// What lies at both ends of a copy. It says which call moves the bytes fastest, and nothing else.
enum class Ends : uint8_t {
  kHost,       ///< Host memory at one of them at least.
  kDevices,    ///< Memory of two devices.
  kOneDevice,  ///< Memory of one device.
};

/// Bytes that the queue's device moves: its own memory, memory mapped from a peer, pinned memory.
struct Copy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t length = 0;
  Ends ends = Ends::kHost;
};

/// Numbers the batches of one queue from 1 on.
enum class Ticket : uint64_t {};

/// What is not over at the same time. A batch that is larger than `bytes` is taken when nothing else is.
struct CopyLimits {
  static constexpr size_t kBatches = 8;
  static constexpr size_t kCopies = 1024;
  static constexpr uint64_t kBytes = uint64_t{256} << 20;
};

struct CopyQueueOptions {
  int streams = 2;              ///< Batches take turns on them: 1 to 8.
  bool use_batch_call = true;   ///< cuMemcpyBatchAsync, where the driver has it.
  bool use_kernels = true;      ///< A kernel copies what the driver's calls are slow with.
  bool use_write_value = true;  ///< cuStreamWriteValue64, where the device has it.
  /// Blocks of a launch: 32 leave most multiprocessors to others, and reach four fifths of the memory's
  /// speed.
  uint32_t blocks = 32;
  /// Within a device a kernel makes the copies of batches that have at most this on average. A call takes 5
  /// to 7 us, in which so much moves (docs/performance.md, "Measured: copies that a device makes of mapped
  /// memory").
  uint64_t launched_within = uint64_t{8} << 20;
};

/// As the settings say.
CopyQueueOptions CopyOptions(const Settings& settings);

/// The copies of one link that a device makes. Batches are given one after another and are over in the order
/// in which they were given, as TakeFinished tells. Nothing is ordered while they run: neither two batches
/// nor the copies of one may touch the same bytes.
///
/// Threads: the holder of progress alone. Nothing here calls the driver, blocks, allocates or locks, but for
/// the constructor, which allocates. The worker makes streams and words when it first looks.
///
/// The end: a queue may go at any time. Batches that were not begun are dropped then; those that were begun
/// go on, and what they read and write must stay until everything that was taken is over.
class CopyQueue {
 public:
  explicit CopyQueue(std::shared_ptr<Worker> worker, const CopyQueueOptions& options = {});
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;
  ~CopyQueue();

  /// Takes all `copies` (1 to CopyLimits::kCopies) as one batch; nullopt: full, ask again when one is over.
  std::optional<Ticket> Submit(std::span<const Copy> copies);

  /// Whether Submit would take a batch of so many copies and bytes.
  [[nodiscard]] bool Fits(size_t copies, uint64_t bytes) const;

  struct Finished {
    Ticket ticket{};
    bool ok = true;  ///< All bytes have arrived. False: some may have, nothing of them moves any more.
  };
  /// The oldest batch that was not told yet, if it is over.
  std::optional<Finished> TakeFinished();
  /// Whether TakeFinished has one: after WakeSignal::Arm.
  [[nodiscard]] bool HasFinished() const;
  /// Of the batches that TakeFinished has not told.
  [[nodiscard]] uint64_t unfinished_bytes() const;

  /// Why batches fail: kInternal with the driver's words, for good. Ok until the first was told.
  [[nodiscard]] Status failure() const;

 private:
  class Core;
  const std::shared_ptr<Worker> worker_;
  const std::shared_ptr<Core> core_;
};

}  // namespace weightcast::device
