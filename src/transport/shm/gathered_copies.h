#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/copy_queue.h"

namespace weightcast::transport::shm {

/// Most bytes of one copy, and of one batch of several: four of them are under way at once.
inline constexpr uint64_t kDevicePiece = uint64_t{64} << 20;
/// Most copies of one batch.
inline constexpr size_t kDeviceBatch = 64;

/// The copies of one batch while they are gathered: at most kDeviceBatch pieces of kDevicePiece bytes in all.
class GatheredCopies {
 public:
  /// Bytes that the batch may still take.
  [[nodiscard]] uint64_t room() const { return kDevicePiece - bytes_; }
  [[nodiscard]] bool full() const { return pieces_ == kDeviceBatch || bytes_ == kDevicePiece; }
  [[nodiscard]] bool empty() const { return pieces_ == 0; }
  [[nodiscard]] size_t pieces() const { return pieces_; }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::span<const device::Copy> copies() const { return std::span(copies_).first(count_); }
  /// Whether the batch writes to one of these bytes.
  [[nodiscard]] bool Touches(const std::byte* to, uint64_t length) const;
  /// Adds a piece of at most room() bytes. `same_regions`: its ends lie in the regions of the piece before
  /// it. Where it also goes on at both ends, one longer copy stands for both, which costs a device less. Over
  /// the end of a region nothing is joined: no copy may go beyond its allocation.
  void Add(const device::Copy& copy, bool same_regions);

 private:
  std::array<device::Copy, kDeviceBatch> copies_;
  size_t count_ = 0;
  size_t pieces_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace weightcast::transport::shm
