#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/copy_queue.h"
#include "transport/tcp/regions.h"
#include "weightcast/status.h"

namespace weightcast::transport::tcp {

enum class Direction : uint8_t { kFromDevice, kToDevice };

/// The copies that one device makes for one link in one direction. Tickets count them; they end in order.
/// Those to the device also run in order: what a lane writes twice ends as it was written last.
class Copier {
 public:
  Copier(const StagedDevice& device, Direction direction);

  /// nullopt: full, ask again when one is over.
  std::optional<uint64_t> Submit(const device::Copy& copy);
  /// Learns which are over. True if one was.
  bool Advance();
  /// Nothing of this copy moves any more.
  [[nodiscard]] bool Over(uint64_t ticket) const { return over_ >= ticket; }
  /// Of one that is over: all its bytes have arrived.
  [[nodiscard]] bool Arrived(uint64_t ticket) const { return ticket < first_failed_; }
  [[nodiscard]] bool HasNews() const { return queue_.HasFinished(); }
  [[nodiscard]] uint64_t newest() const { return newest_; }
  [[nodiscard]] bool Serves(const StagedDevice& device, Direction direction) const {
    return device_ == &device && direction_ == direction;
  }
  /// Why copies fail; ok while they do not.
  [[nodiscard]] Status failure() const;

 private:
  const StagedDevice* device_;
  Direction direction_;
  device::CopyQueue queue_;
  uint64_t newest_ = 0;
  uint64_t over_ = 0;
  uint64_t first_failed_ = UINT64_MAX;
};

/// All copiers of one link, made when first used. The holder of progress alone; no driver call, no lock, and
/// no allocation after the first use.
class Copiers {
 public:
  /// Which copies were under way when this was made.
  using Fence = std::vector<uint64_t>;

  Copier& Of(const StagedDevice& device, Direction direction);
  /// Its failure is one of the link's from now on.
  void UseBlocksOf(const Staging& staging) { staging_ = &staging; }
  bool Advance();
  [[nodiscard]] bool HasNews() const;
  [[nodiscard]] bool idle() const;
  [[nodiscard]] Fence MakeFence() const;
  /// None of them moves anything any more.
  [[nodiscard]] bool Over(const Fence& fence) const;
  /// The first failure of one of them, or of the blocks.
  [[nodiscard]] Status failure() const;

 private:
  std::vector<std::unique_ptr<Copier>> copiers_;
  const Staging* staging_ = nullptr;
};

}  // namespace weightcast::transport::tcp
