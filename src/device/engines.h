#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/copy_queue.h"
#include "device/devices.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// The copies that one device makes for one link. Tickets count its batches; they end in order.
class Engine {
 public:
  Engine(Device device, const CopyQueueOptions& options)
      : device_(std::move(device)), queue_(device_.worker, options) {}

  /// As CopyQueue::Submit.
  std::optional<uint64_t> Submit(std::span<const Copy> copies);
  /// Whether Submit would take so many copies of so many bytes.
  [[nodiscard]] bool Fits(size_t copies, uint64_t bytes) const { return queue_.Fits(copies, bytes); }
  /// A batch that is not full had better wait for more: the device has enough to do.
  [[nodiscard]] bool Busy() const { return queue_.unfinished_bytes() >= kBusy; }
  /// Learns which batches are over. True if there was one.
  bool Advance();
  /// Nothing of this batch moves any more.
  [[nodiscard]] bool Over(uint64_t ticket) const { return over_ >= ticket; }
  /// Of one that is over: all its bytes have arrived.
  [[nodiscard]] bool Arrived(uint64_t ticket) const { return ticket < first_failed_; }
  [[nodiscard]] bool HasNews() const { return queue_.HasFinished(); }
  [[nodiscard]] uint64_t newest() const { return newest_; }
  [[nodiscard]] const Device& device() const { return device_; }
  /// Why copies fail; ok while they do not.
  [[nodiscard]] Status failure() const;

 private:
  /// With so much under way a device is busy for longer than it takes to give it the next batch.
  static constexpr uint64_t kBusy = uint64_t{128} << 20;

  const Device device_;
  CopyQueue queue_;
  uint64_t newest_ = 0;
  uint64_t over_ = 0;
  uint64_t first_failed_ = UINT64_MAX;
};

/// Which copies were under way when this was made: nothing that they write moves once they are over.
using EngineFence = std::vector<uint64_t>;

/// All engines of one link, made when first used. The holder of progress alone; no driver call, no lock, and
/// no allocation after the first use.
class Engines {
 public:
  /// Whether the copies of one engine run at once, or each after those before it.
  enum class Order : uint8_t { kAny, kOneByOne };

  explicit Engines(const CopyQueueOptions& options) : options_(options) {}
  Engine& Of(const Device& device, Order order = Order::kAny);
  bool Advance();
  [[nodiscard]] bool HasNews() const;
  [[nodiscard]] bool idle() const;
  /// The first failure of one of them.
  [[nodiscard]] Status failure() const;
  [[nodiscard]] EngineFence Fence() const;
  [[nodiscard]] bool Over(const EngineFence& fence) const;

 private:
  struct Made {
    Order order = Order::kAny;
    std::unique_ptr<Engine> engine;
  };
  const CopyQueueOptions options_;
  std::vector<Made> made_;
};

}  // namespace weightcast::device
