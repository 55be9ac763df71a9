#include "transport/shm/source_messages.h"

#include "transport/shm/channel.h"

namespace weightcast::transport::shm {
namespace {

using device::Exportable;

constexpr size_t kHandleBytes = 64;
/// Of one allocation; far more than any device has pages.
constexpr uint64_t kMostBlocks = 1U << 20;

bool TravelsInside(Exportable exportable) {
  return exportable == Exportable::kLegacy || exportable == Exportable::kFabric;
}

}  // namespace

size_t HandlesPerMessage(Exportable exportable) {
  constexpr size_t kHead = 4;
  if (!TravelsInside(exportable)) return device::kHandlesPerMessage;
  return (Channel::kMostBytes - kHead) / kHandleBytes;
}

std::vector<BlockRun> RunsOf(const std::vector<device::Block>& blocks) {
  std::vector<BlockRun> runs;
  for (const device::Block& block : blocks) {
    if (runs.empty() || runs.back().length != block.length)
      runs.push_back({.count = 0, .length = block.length});
    ++runs.back().count;
  }
  return runs;
}

std::vector<uint64_t> LengthsOf(const std::vector<BlockRun>& runs) {
  std::vector<uint64_t> lengths;
  for (const BlockRun& run : runs) lengths.insert(lengths.end(), run.count, run.length);
  return lengths;
}

void PutRest(ByteWriter& out, const SourceOffer& message) {
  out.Put(static_cast<uint8_t>(message.blocks.size()));
  for (const BlockRun& run : message.blocks) out.Put(run.count, run.length);
}

void GetRest(ByteReader& in, SourceOffer& message) {
  const auto runs = in.Get<uint8_t>();
  for (size_t i = 0; i < runs && in.ok() && runs <= kMostRuns; ++i) {
    BlockRun& run = message.blocks.emplace_back();
    in.Get(run.count, run.length);
  }
}

bool IsPlausible(const SourceOffer& message) {
  uint64_t blocks = 0;
  for (const BlockRun& run : message.blocks) blocks += run.count;
  const bool inside =
      message.offset <= message.allocation && message.length <= message.allocation - message.offset;
  const bool counted = message.code == Code::kOk ? blocks > 0 && blocks <= kMostBlocks : blocks == 0;
  return message.exportable <= Exportable::kFabric && inside && counted;
}

void PutRest(ByteWriter& out, const SourceHandles& message) {
  for (const auto& handle : message.handles) out.Put(handle);
}

void GetRest(ByteReader& in, SourceHandles& message) {
  for (size_t i = 0; i < message.count && in.ok() && TravelsInside(message.exportable); ++i)
    in.Get(message.handles.emplace_back());
}

bool IsPlausible(const SourceHandles& message) {
  return message.exportable <= Exportable::kFabric && message.count > 0 &&
         message.count <= HandlesPerMessage(message.exportable);
}

}  // namespace weightcast::transport::shm
