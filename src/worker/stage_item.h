#pragma once

#include <cstdint>
#include <vector>

#include "device/kernels.h"
#include "worker/send_plan.h"

namespace weightcast::worker {

/// Where in the space an item begins if the one before it ended at `end`.
uint64_t StagedAt(const StagingSpace& space, uint64_t end);
/// What an item takes there.
uint64_t StagedBytes(const SendPlan& plan, const Item& item);

/// Fills the staging space of one transfer, item by item.
class ItemStager {
 public:
  ItemStager(const SendPlan& plan, const StagingSpace& space) : plan_(plan), space_(space) {}
  /// Reads, gathers, casts and quantises one item to `at` in the space; its segments lie there one after
  /// another. On a device it is only noted.
  Status Add(const Item& item, const RouteSegments& segments, uint64_t at);
  /// All bytes are in the space.
  Status Finish();

 private:
  const SendPlan& plan_;
  const StagingSpace& space_;
  std::vector<device::Launch> launches_;
};

/// The place that stages a transfer: the device on which all that it stages lies, if kernels can do all of
/// it; else the host.
int StagingPlaceOf(const SendPlan& plan, size_t target, uint32_t transfer);

}  // namespace weightcast::worker
