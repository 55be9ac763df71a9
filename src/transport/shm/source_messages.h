#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/handles.h"
#include "memory/memory.h"
#include "transport/shm/messages.h"
#include "weightcast/status.h"

/// The messages that let a peer's device read a region of device memory (docs/wire.md, shm, "device memory").
/// A *source* is such a region; its *reader* is the device of the peer that maps it.
namespace weightcast::transport::shm {

/// A region's id and generation.
using RegionId = std::pair<uint32_t, uint32_t>;

/// In place of a region's id: a trial cell, which is no region (device::TrialCell). Its generation is the
/// seed of its pattern.
inline constexpr uint32_t kTrialRegion = UINT32_MAX;

/// Reader to owner: offer me that region.
struct WantSource {
  RegionId region;
  DeviceUuid reader{};
};
inline auto Layout(WantSource& m) {
  return LayoutOf(MessageKind::kWantSource, "request for a source", m.region, m.reader);
}

/// Blocks of one length that follow each other.
struct BlockRun {
  uint32_t count = 0;
  uint64_t length = 0;
};

/// Owner to reader: what the region is. Unless `own`, a handle for each block follows, in other messages.
struct SourceOffer {
  RegionId region;
  DeviceUuid reader{};
  Code code = Code::kOk;  ///< Else there is nothing to map.
  device::Exportable exportable = device::Exportable::kNo;
  DeviceUuid device{};
  bool own = false;              ///< Of the reader's own process.
  uint64_t process = 0;          ///< The owner's ProcessName().
  uint64_t identity = 0;         ///< Of the allocation.
  uint64_t address = 0;          ///< Of the allocation; used only by a reader in the same process.
  uint64_t allocation = 0;       ///< Its length.
  uint64_t offset = 0;           ///< Of the region in it.
  uint64_t length = 0;           ///< Of the region.
  std::vector<BlockRun> blocks;  ///< Of the allocation.
};
void PutRest(ByteWriter& out, const SourceOffer& message);
void GetRest(ByteReader& in, SourceOffer& message);
bool IsPlausible(const SourceOffer& message);
inline auto Layout(SourceOffer& m) {
  return LayoutOf(MessageKind::kSourceOffer, "offer of a source", m.region, m.reader, m.code, m.exportable,
                  m.own, m.device, m.process, m.identity, m.address, m.allocation, m.offset, m.length);
}
/// Most runs of one offer: memory in more of them is staged.
inline constexpr size_t kMostRuns = 24;
std::vector<BlockRun> RunsOf(const std::vector<device::Block>& blocks);
/// The lengths of all blocks.
std::vector<uint64_t> LengthsOf(const std::vector<BlockRun>& runs);

/// Handles of the next blocks of the offer before. Descriptors travel beside the message.
struct SourceHandles {
  device::Exportable exportable = device::Exportable::kNo;
  uint8_t count = 0;
  std::vector<std::array<std::byte, 64>> handles;  ///< Legacy and fabric handles: one for each block.
};
void PutRest(ByteWriter& out, const SourceHandles& message);
void GetRest(ByteReader& in, SourceHandles& message);
bool IsPlausible(const SourceHandles& message);
inline auto Layout(SourceHandles& m) {
  return LayoutOf(MessageKind::kSourceHandles, "handles", m.exportable, m.count);
}
/// Blocks whose handles fit into one message.
size_t HandlesPerMessage(device::Exportable exportable);

/// Reader to owner: whether its device reads the region. Of a trial cell: whether the way to that device
/// moves bytes as they are; nothing of the cell is mapped any more.
struct SourceVerdict {
  RegionId region;
  DeviceUuid reader{};
  bool reads = false;
};
inline auto Layout(SourceVerdict& m) {
  return LayoutOf(MessageKind::kSourceVerdict, "verdict on a source", m.region, m.reader, m.reads);
}
/// Owner to reader: unmap the region.
struct Drop {
  RegionId region;
};
inline auto Layout(Drop& m) { return LayoutOf(MessageKind::kDrop, "request to drop a source", m.region); }
/// Reader to owner: the region is not mapped any more, or (`all`) none is.
struct Dropped {
  RegionId region;
  bool all = false;
};
inline auto Layout(Dropped& m) {
  return LayoutOf(MessageKind::kDropped, "notice of a dropped source", m.region, m.all);
}

}  // namespace weightcast::transport::shm
