#include "stream/frame.h"

#include "base/bytes.h"
#include "base/strings.h"

namespace weightcast::stream {
namespace {

/// What has been taken is dropped once there is so much of it.
constexpr size_t kMostTaken = size_t{64} << 10;

struct Head {
  uint32_t size = 0;
  uint8_t kind = 0;
};

Head ReadHead(std::string_view bytes) {
  ByteReader reader(bytes);
  Head head;
  head.size = reader.Get<uint32_t>();
  head.kind = reader.Get<uint8_t>();
  return head;
}

bool IsValid(const Head& head) {
  return head.size <= kMostFrameBytes && head.kind >= static_cast<uint8_t>(FrameKind::kProof) &&
         head.kind <= static_cast<uint8_t>(FrameKind::kClose);
}

}  // namespace

void AppendFrame(std::string& out, FrameKind kind, std::string_view body) {
  out += PackBytes(static_cast<uint32_t>(body.size()), kind);
  out += body;
}

void FrameDecoder::Add(std::string_view bytes) {
  if (begin_ == bytes_.size() || begin_ >= kMostTaken) {
    bytes_.erase(0, begin_);
    begin_ = 0;
  }
  bytes_ += bytes;
}

Result<std::optional<Frame>> FrameDecoder::Next() {
  const std::string_view left = rest();
  if (left.size() < kFrameHead) return std::optional<Frame>();
  const Head head = ReadHead(left);
  if (head.size > kMostFrameBytes)
    return Error(Code::kProtocol, "the other side sent a frame of ", head.size, " bytes; at most ",
                 kMostFrameBytes, " are allowed: use the same weightcast on all hosts");
  if (!IsValid(head))
    return Error(Code::kProtocol, "the other side sent a frame of the unknown kind ", int{head.kind},
                 "; use the same weightcast on all hosts");
  if (left.size() < kFrameHead + head.size) return std::optional<Frame>();
  Frame frame{.kind = static_cast<FrameKind>(head.kind),
              .body = std::string(left.substr(kFrameHead, head.size))};
  begin_ += kFrameHead + head.size;
  if (begin_ == bytes_.size()) {  // Nothing is kept between frames.
    std::string().swap(bytes_);
    begin_ = 0;
  }
  return std::optional(std::move(frame));
}

bool FrameDecoder::HasFrame() const {
  const std::string_view left = rest();
  if (left.size() < kFrameHead) return false;
  const Head head = ReadHead(left);
  return !IsValid(head) || left.size() >= kFrameHead + head.size;
}

std::string EncodeReason(const Status& reason) {
  std::string text = reason.message().substr(0, kMostReasonBytes);
  while (!text.empty() && !IsUtf8(text)) text.pop_back();  // A character was cut through.
  for (char& c : text)
    if (!IsPrintable({&c, 1})) c = ' ';
  return StrCat(static_cast<char>(reason.code()), text);
}

Status DecodeReason(std::string_view body) {
  const uint8_t code = body.empty() ? 0 : static_cast<uint8_t>(body.front());
  if (code == 0 || code > static_cast<uint8_t>(Code::kInternal))
    return Error(Code::kProtocol, "the other side closed the stream with the unknown code ", int{code},
                 "; use the same weightcast on all hosts");
  const std::string_view text = body.substr(1);
  if (text.size() > kMostReasonBytes || !IsUtf8(text) || !IsPrintable(text))
    return Error(Code::kProtocol, "the other side closed the stream with a reason of ", text.size(),
                 " bytes, which must be printable UTF-8 of at most ", kMostReasonBytes,
                 " bytes; use the same weightcast on all hosts");
  return {static_cast<Code>(code), std::string(text)};
}

}  // namespace weightcast::stream
