#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weightcast/status.h"

namespace weightcast::stream {

enum class FrameKind : uint8_t {
  kProof = 1,  ///< The server's first: the controller's signature.
  kData = 2,
  kClose = 3,  ///< Why the sender ends the stream. Its last.
};

inline constexpr size_t kFrameHead = 5;
inline constexpr size_t kMostFrameBytes = (size_t{1} << 20) + 64;  ///< Of a body.
inline constexpr size_t kMostReasonBytes = 1024;
/// Of bytes that wait to be sent: below it a stream has room again.
inline constexpr size_t kLowWater = size_t{256} << 10;

struct Frame {
  FrameKind kind = FrameKind::kData;
  std::string body;
};

/// Length (u32, little-endian), kind and body, appended to `out`. The body must be within the limit.
void AppendFrame(std::string& out, FrameKind kind, std::string_view body);

/// Cuts what comes into frames. The bytes may be hostile: it keeps no more than was added and not yet taken,
/// and whoever adds only while `HasFrame` is false never has it keep more than one frame and what was added
/// last.
class FrameDecoder {
 public:
  void Add(std::string_view bytes);
  /// The next frame, if it is whole. Errors: kProtocol; the stream is then useless.
  Result<std::optional<Frame>> Next();
  /// Next has something to say.
  [[nodiscard]] bool HasFrame() const;
  /// Inside a frame.
  [[nodiscard]] bool partial() const { return begin_ < bytes_.size(); }

 private:
  [[nodiscard]] std::string_view rest() const { return std::string_view(bytes_).substr(begin_); }
  std::string bytes_;
  size_t begin_ = 0;
};

/// A reason as the body of kClose: one printable line, cut to its limit. And back: never ok; kProtocol for a
/// body that is none.
std::string EncodeReason(const Status& reason);
Status DecodeReason(std::string_view body);

}  // namespace weightcast::stream
