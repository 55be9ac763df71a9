#include "transport/tcp/frame.h"

#include <cstring>

#include "base/bytes.h"

namespace weightcast::transport::tcp {
namespace {

constexpr uint16_t kFrameMagic = 0x4357;  // "WC" on the wire.
constexpr uint8_t kFlagSignal = 1;
constexpr uint8_t kFlagFirst = 2;
constexpr size_t kPrefixSize = 8;
constexpr size_t kSignalSize = 32;
constexpr size_t kWriteSize = 40;
constexpr size_t kReadSize = 24;
constexpr size_t kResultSize = 8;
constexpr size_t kDataSize = 8;
constexpr size_t kLaneOverSize = 8;
static_assert(kPrefixSize + kWriteSize + kSignalSize == kMaxFrameSize);

/// Where a frame is written. No bounds checks: every frame fits kMaxFrameSize.
struct FrameOut {
  std::byte* begin = nullptr;
  size_t size = 0;
  void append(const char* bytes, size_t count) {
    std::memcpy(begin + size, bytes, count);
    size += count;
  }
};
using Writer = BasicByteWriter<FrameOut>;

void PutSignal(Writer& out, const Signal& signal) {
  out.Put(signal.grant.slot, signal.transfer, signal.chunk, signal.chunks, signal.grant.id, signal.checksum);
}

/// Size of the body by type and flags; 0: there is no such frame.
size_t SizeOf(uint8_t type, uint8_t flags) {
  const bool write = type == static_cast<uint8_t>(FrameType::kWrite);
  const bool signal = type == static_cast<uint8_t>(FrameType::kSignal);
  const int known = (write ? kFlagSignal : 0) | (write || signal ? kFlagFirst : 0);
  if ((flags & ~known) != 0) return 0;
  switch (static_cast<FrameType>(type)) {
    case FrameType::kWrite:
      return kPrefixSize + kWriteSize + ((flags & kFlagSignal) != 0 ? kSignalSize : 0);
    case FrameType::kSignal:
      return kPrefixSize + kSignalSize;
    case FrameType::kRead:
      return kPrefixSize + kReadSize;
    case FrameType::kAck:
      return kPrefixSize;
    case FrameType::kResult:
      return kPrefixSize + kResultSize;
    case FrameType::kData:
      return kPrefixSize + kDataSize;
    case FrameType::kLaneOver:
      return kPrefixSize + kLaneOverSize;
  }
  return 0;
}

std::string_view GetSignal(ByteReader& in, Signal& signal) {
  in.Get(signal.grant.slot, signal.transfer, signal.chunk, signal.chunks, signal.grant.id, signal.checksum);
  return signal.grant.slot < kGrantSlots ? "" : "a signal's grant slot is out of range";
}

std::string_view GetWrite(ByteReader& in, Frame& frame) {
  uint32_t zero = 0;
  in.Get(frame.region, frame.generation, frame.grant.slot, zero, frame.grant.id, frame.offset, frame.length);
  if (zero != 0) return "a reserved field is not zero";
  if (frame.grant.slot >= kGrantSlots) return "a write's grant slot is out of range";
  if (frame.length > kMaxLength) return "a write's length is out of range";
  return frame.has_signal ? GetSignal(in, frame.signal) : "";
}

std::string_view GetRead(ByteReader& in, Frame& frame) {
  in.Get(frame.region, frame.generation, frame.offset, frame.length);
  return frame.length <= kMaxLength ? "" : "a read's length is out of range";
}

std::string_view GetResult(ByteReader& in, Frame& frame) {
  uint8_t code = 0;
  uint8_t zero8 = 0;
  uint16_t zero16 = 0;
  uint32_t zero32 = 0;
  in.Get(code, zero8, zero16, zero32);
  if (zero8 != 0 || zero16 != 0 || zero32 != 0) return "a reserved field is not zero";
  if (code > static_cast<uint8_t>(Code::kInternal)) return "a result's code is unknown";
  frame.code = static_cast<Code>(code);
  return "";
}

std::string_view GetLaneOver(ByteReader& in, Frame& frame) {
  uint8_t heard = 0;
  uint8_t zero8 = 0;
  uint32_t zero32 = 0;
  in.Get(frame.lane, heard, zero8, zero32);
  if (heard > 1 || zero8 != 0 || zero32 != 0) return "a reserved field is not zero";
  frame.heard = heard == 1;
  return "";
}

/// Empty, or what is wrong.
std::string_view GetBody(ByteReader& in, Frame& frame) {
  switch (frame.type) {
    case FrameType::kWrite:
      return GetWrite(in, frame);
    case FrameType::kSignal:
      return GetSignal(in, frame.signal);
    case FrameType::kRead:
      return GetRead(in, frame);
    case FrameType::kAck:
      return "";
    case FrameType::kResult:
      return GetResult(in, frame);
    case FrameType::kData:
      in.Get(frame.length);
      return frame.length <= kMaxLength ? "" : "a data frame's length is out of range";
    case FrameType::kLaneOver:
      return GetLaneOver(in, frame);
  }
  return "it sent a frame of an unknown type";
}

}  // namespace

size_t EncodeFrame(const Frame& frame, std::span<std::byte, kMaxFrameSize> out) {
  Writer writer(FrameOut{.begin = out.data()});
  const bool write = frame.type == FrameType::kWrite;
  const bool signal = frame.type == FrameType::kSignal;
  const int flags =
      (write && frame.has_signal ? kFlagSignal : 0) | ((write || signal) && frame.first ? kFlagFirst : 0);
  writer.Put(kFrameMagic, frame.type, static_cast<uint8_t>(flags), frame.sequence);
  switch (frame.type) {
    case FrameType::kWrite:
      writer.Put(frame.region, frame.generation, frame.grant.slot, uint32_t{0}, frame.grant.id, frame.offset,
                 frame.length);
      if (frame.has_signal) PutSignal(writer, frame.signal);
      break;
    case FrameType::kSignal:
      PutSignal(writer, frame.signal);
      break;
    case FrameType::kRead:
      writer.Put(frame.region, frame.generation, frame.offset, frame.length);
      break;
    case FrameType::kAck:
      break;
    case FrameType::kResult:
      writer.Put(frame.code, uint8_t{0}, uint16_t{0}, uint32_t{0});
      break;
    case FrameType::kData:
      writer.Put(frame.length);
      break;
    case FrameType::kLaneOver:
      writer.Put(frame.lane, frame.heard, uint8_t{0}, uint32_t{0});
      break;
  }
  return writer.bytes().size;
}

ParsedFrame ParseFrame(std::span<const std::byte> bytes, Frame& frame) {
  using Outcome = ParsedFrame::Outcome;
  if (bytes.size() < kPrefixSize) return {.outcome = Outcome::kShort, .size = 0, .what = {}};
  ByteReader in({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  uint16_t magic = 0;
  uint8_t type = 0;
  uint8_t flags = 0;
  in.Get(magic, type, flags, frame.sequence);
  const size_t size = magic == kFrameMagic ? SizeOf(type, flags) : 0;
  if (size == 0) {
    return {Outcome::kMalformed, 0,
            magic == kFrameMagic ? "it sent a frame of an unknown type" : "it sent no frame of weightcast"};
  }
  if (bytes.size() < size) return {.outcome = Outcome::kShort, .size = 0, .what = {}};
  frame.type = static_cast<FrameType>(type);
  frame.has_signal = (flags & kFlagSignal) != 0;
  frame.first = (flags & kFlagFirst) != 0;
  const std::string_view wrong = GetBody(in, frame);
  if (!wrong.empty()) return {Outcome::kMalformed, 0, wrong};
  return {.outcome = Outcome::kFrame, .size = size, .what = {}};
}

}  // namespace weightcast::transport::tcp
