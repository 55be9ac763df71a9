#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "transport/types.h"
#include "weightcast/status.h"

// What crosses a lane once it has started: docs/wire.md, "tcp".
namespace weightcast::transport::tcp {

enum class FrameType : uint8_t { kWrite = 1, kSignal, kRead, kAck, kResult, kData, kLaneOver };

/// One frame without its payload. Which fields count depends on the type.
struct Frame {
  FrameType type = FrameType::kAck;
  bool has_signal = false;  ///< kWrite.
  bool first = false;       ///< kWrite, kSignal: Op::first.
  uint32_t sequence = 0;    ///< kLaneOver: which generation of the lane.
  uint32_t region = 0;      ///< kWrite, kRead.
  uint32_t generation = 0;  ///< kWrite, kRead.
  GrantName grant;          ///< kWrite.
  uint64_t offset = 0;      ///< kWrite, kRead.
  uint64_t length = 0;      ///< kWrite, kRead, kData.
  Signal signal;            ///< kSignal, kWrite with has_signal.
  Code code = Code::kOk;    ///< kResult.
  uint16_t lane = 0;        ///< kLaneOver: the one that is over.
  bool heard = false;       ///< kLaneOver: the sender knows it of the receiver too.
  /// Bytes that follow the frame.
  [[nodiscard]] uint64_t payload() const {
    return type == FrameType::kWrite || type == FrameType::kData ? length : 0;
  }
};

/// No frame is longer, its payload aside.
inline constexpr size_t kMaxFrameSize = 80;
/// No operation is longer.
inline constexpr uint64_t kMaxLength = uint64_t{1} << 40;

/// Writes the frame and returns its size.
size_t EncodeFrame(const Frame& frame, std::span<std::byte, kMaxFrameSize> out);

struct ParsedFrame {
  enum class Outcome : uint8_t { kFrame, kShort, kMalformed };
  Outcome outcome = Outcome::kShort;
  size_t size = 0;        ///< kFrame: bytes that it took.
  std::string_view what;  ///< kMalformed: what is wrong.
};
/// Reads one frame from the front of bytes that may be hostile. kShort: more are needed.
ParsedFrame ParseFrame(std::span<const std::byte> bytes, Frame& frame);

}  // namespace weightcast::transport::tcp
