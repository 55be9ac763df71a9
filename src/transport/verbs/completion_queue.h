#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <span>

#include "transport/verbs/rdma_device.h"
#include "weightcast/status.h"

namespace weightcast::transport::verbs {

/// The completion queue of one NIC, and how many of its entries nobody counts on: a completion that finds no
/// entry breaks the queue. Who posts a work request takes room first. Belongs to the holder of progress.
class CompletionQueue {
 public:
  /// Entries: enough for hundreds of queue pairs.
  static constexpr uint32_t kMost = 16384;
  /// Completions that one Poll takes at most.
  static constexpr uint32_t kBatch = 32;

  /// `device` is opened before Create and outlives it.
  explicit CompletionQueue(RdmaDevice& device) : device_(device) {}
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;
  /// Its queue pairs are gone.
  ~CompletionQueue();

  Status Create(uint32_t entries);
  [[nodiscard]] ibv_cq* handle() const { return queue_; }

  /// Work requests that may go under way without the queue overflowing.
  [[nodiscard]] uint32_t room() const { return room_; }
  void TakeRoom(uint32_t count) { room_ -= count; }
  void GiveRoom(uint32_t count) { room_ += count; }
  /// Of a queue pair that is gone. Its completions may still stand in the queue, so this is room again only
  /// after a Poll has found the end.
  void GiveRoomOnceEmpty(uint32_t count) { stale_ += count; }

  /// The next completions. Valid until the next Poll. The device dies if it cannot be polled.
  std::span<const ibv_wc> Poll();
  [[nodiscard]] int fd() const { return channel_->fd; }
  /// From here on completions make `fd` readable; those that came before may not.
  Status Arm() const;
  void Disarm() const;

 private:
  RdmaDevice& device_;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  uint32_t room_ = 0;
  uint32_t stale_ = 0;
  std::array<ibv_wc, kBatch> polled_{};
};

}  // namespace weightcast::transport::verbs
