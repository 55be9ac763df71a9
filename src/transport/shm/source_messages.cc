#include "transport/shm/source_messages.h"

#include <algorithm>
#include <cstring>

#include "transport/shm/channel.h"

namespace weightcast::transport::shm {
namespace {

using device::Exportable;

constexpr size_t kHandleBytes = 64;
/// Of one allocation; far more than any device has pages.
constexpr uint64_t kMostBlocks = 1U << 20;

void PutRegion(ByteWriter& out, const RegionId& region) {
  out.Put(region.first);
  out.Put(region.second);
}

RegionId GetRegion(ByteReader& in) {
  RegionId region;
  region.first = in.Get<uint32_t>();
  region.second = in.Get<uint32_t>();
  return region;
}

template <size_t kSize>
void PutBytes(ByteWriter& out, const std::array<std::byte, kSize>& bytes) {
  out.PutRaw({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

template <size_t kSize>
std::array<std::byte, kSize> GetBytes(ByteReader& in) {
  std::array<std::byte, kSize> bytes{};
  const auto raw = in.GetRaw(kSize);
  if (in.ok()) std::memcpy(bytes.data(), raw.data(), raw.size());
  return bytes;
}

/// Anything unknown is a number that the caller refuses.
bool GetExportable(ByteReader& in, Exportable& exportable) {
  const auto raw = in.Get<uint8_t>();
  exportable = static_cast<Exportable>(raw);
  return raw <= static_cast<uint8_t>(Exportable::kFabric);
}

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

std::string Encode(const WantSource& message) {
  auto out = BeginMessage(MessageKind::kWantSource);
  PutRegion(out, message.region);
  PutBytes(out, message.reader);
  return out.Take();
}

std::string Encode(const SourceOffer& message) {
  auto out = BeginMessage(MessageKind::kSourceOffer);
  PutRegion(out, message.region);
  PutBytes(out, message.reader);
  out.Put(static_cast<uint8_t>(message.code));
  out.Put(static_cast<uint8_t>(message.exportable));
  out.Put(static_cast<uint8_t>(message.own));
  PutBytes(out, message.device);
  for (const uint64_t number : {message.process, message.identity, message.address, message.allocation,
                                message.offset, message.length}) {
    out.Put(number);
  }
  out.Put(static_cast<uint8_t>(message.blocks.size()));
  for (const BlockRun& run : message.blocks) {
    out.Put(run.count);
    out.Put(run.length);
  }
  return out.Take();
}

std::string Encode(const SourceHandles& message) {
  auto out = BeginMessage(MessageKind::kSourceHandles);
  out.Put(static_cast<uint8_t>(message.exportable));
  out.Put(message.count);
  for (const auto& handle : message.handles) PutBytes(out, handle);
  return out.Take();
}

std::string Encode(const SourceVerdict& message) {
  auto out = BeginMessage(MessageKind::kSourceVerdict);
  PutRegion(out, message.region);
  PutBytes(out, message.reader);
  out.Put(static_cast<uint8_t>(message.reads));
  return out.Take();
}

std::string Encode(const Drop& message) {
  auto out = BeginMessage(MessageKind::kDrop);
  PutRegion(out, message.region);
  return out.Take();
}

std::string Encode(const Dropped& message) {
  auto out = BeginMessage(MessageKind::kDropped);
  PutRegion(out, message.region);
  out.Put(static_cast<uint8_t>(message.all));
  return out.Take();
}

Result<WantSource> DecodeWantSource(std::string_view bytes) {
  auto in = MessageBody(bytes, MessageKind::kWantSource);
  WantSource message;
  message.region = GetRegion(in);
  message.reader = GetBytes<16>(in);
  if (!in.AtEnd()) return Malformed("request for a source");
  return message;
}

Result<SourceOffer> DecodeSourceOffer(std::string_view bytes) {
  auto in = MessageBody(bytes, MessageKind::kSourceOffer);
  SourceOffer message;
  message.region = GetRegion(in);
  message.reader = GetBytes<16>(in);
  message.code = GetCode(in);
  const bool known = GetExportable(in, message.exportable);
  message.own = in.Get<uint8_t>() != 0;
  message.device = GetBytes<16>(in);
  for (uint64_t* number : {&message.process, &message.identity, &message.address, &message.allocation,
                           &message.offset, &message.length}) {
    *number = in.Get<uint64_t>();
  }
  const size_t runs = in.Get<uint8_t>();
  uint64_t blocks = 0;
  for (size_t i = 0; i < runs && in.ok() && runs <= kMostRuns; ++i) {
    BlockRun run;
    run.count = in.Get<uint32_t>();
    run.length = in.Get<uint64_t>();
    blocks += run.count;
    message.blocks.push_back(run);
  }
  const bool inside =
      message.offset <= message.allocation && message.length <= message.allocation - message.offset;
  const bool counted = message.code == Code::kOk ? blocks > 0 && blocks <= kMostBlocks : blocks == 0;
  if (!in.AtEnd() || !known || !inside || !counted) return Malformed("offer of a source");
  return message;
}

Result<SourceHandles> DecodeSourceHandles(std::string_view bytes) {
  auto in = MessageBody(bytes, MessageKind::kSourceHandles);
  SourceHandles message;
  const bool known = GetExportable(in, message.exportable);
  message.count = in.Get<uint8_t>();
  if (!known || message.count == 0 || message.count > HandlesPerMessage(message.exportable)) {
    return Malformed("handles");
  }
  for (size_t i = 0; i < message.count && TravelsInside(message.exportable); ++i) {
    message.handles.push_back(GetBytes<kHandleBytes>(in));
  }
  if (!in.AtEnd()) return Malformed("handles");
  return message;
}

Result<SourceVerdict> DecodeSourceVerdict(std::string_view bytes) {
  auto in = MessageBody(bytes, MessageKind::kSourceVerdict);
  SourceVerdict message;
  message.region = GetRegion(in);
  message.reader = GetBytes<16>(in);
  message.reads = in.Get<uint8_t>() != 0;
  if (!in.AtEnd()) return Malformed("verdict on a source");
  return message;
}

Result<Drop> DecodeDrop(std::string_view bytes) {
  auto in = MessageBody(bytes, MessageKind::kDrop);
  Drop message;
  message.region = GetRegion(in);
  if (!in.AtEnd()) return Malformed("request to drop a source");
  return message;
}

Result<Dropped> DecodeDropped(std::string_view bytes) {
  auto in = MessageBody(bytes, MessageKind::kDropped);
  Dropped message;
  message.region = GetRegion(in);
  message.all = in.Get<uint8_t>() != 0;
  if (!in.AtEnd()) return Malformed("notice of a dropped source");
  return message;
}

}  // namespace weightcast::transport::shm
