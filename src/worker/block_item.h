#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "device/kernels.h"
#include "weightcast/status.h"
#include "worker/gather.h"
#include "worker/send_plan.h"

// Items of what a quantise rule makes: FP8 values, or their scales.
namespace weightcast::worker {

/// Whole blocks of a matrix, and where their values or scales go.
struct BlockPart {
  GatherSource source;  ///< `box`: the blocks.
  bool scales = false;
  std::byte* target = nullptr;
  int64_t stride = 0;  ///< Bytes from one row of the target to the next.
};

/// Whether the item is one of those.
bool IsOfBlocks(const SendPlan& plan, const Item& item);
/// What makes the item, in the order of its elements: one part for values, up to three for scales.
std::vector<BlockPart> BlockPartsOf(const SendPlan& plan, const Item& item, std::byte* target);

/// Reads the blocks and computes. Of device memory, the bytes come to the host first.
Status QuantiseOnHost(const SendPlan& plan, const Item& item, const BlockPart& part);
/// The launch that does the same to memory of a device, bit for bit. Nothing where no kernel can: rows that
/// are not contiguous, elements that are not aligned.
std::optional<device::Launch> QuantiseLaunch(const BlockPart& part);

}  // namespace weightcast::worker
