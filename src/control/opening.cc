#include "control/opening.h"

#include <cstddef>

#include "base/strings.h"

namespace weightcast::control {
namespace {

constexpr size_t kFrameHead = 9;
enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kResetStream = 3,
  kSettings = 4,
  kGoAway = 7,
  kContinuation = 9
};
constexpr uint8_t kEndStream = 0x1;
constexpr uint8_t kEndHeaders = 0x4;
constexpr uint8_t kPadded = 0x8;
constexpr uint8_t kHasPriority = 0x20;

constexpr uint64_t kPathIndexes[] = {4, 5};  // Of HPACK's static table.
constexpr uint64_t kAuthorizationIndex = 23;
constexpr char kStatus200 = '\x88';
constexpr uint64_t kMostInteger = 1 << 20;

Status Malformed() { return {Code::kProtocol, "a malformed HTTP/2 header"}; }

uint32_t BigEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

/// Takes HPACK's primitives from the front.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view block) : left_(block) {}
  [[nodiscard]] bool empty() const { return left_.empty(); }
  [[nodiscard]] uint8_t peek() const { return static_cast<uint8_t>(left_.front()); }

  Result<uint64_t> Integer(int prefix_bits) {
    if (left_.empty()) return Malformed();
    const uint64_t mask = (1U << prefix_bits) - 1;
    uint64_t value = Take() & mask;
    if (value < mask) return value;
    for (int shift = 0;; shift += 7) {
      if (left_.empty() || value > kMostInteger || shift > 21) return Malformed();
      const uint8_t byte = Take();
      value += uint64_t{byte & 0x7FU} << shift;
      if ((byte & 0x80) == 0) return value;
    }
  }
  /// nullopt: in Huffman code, which no weightcast worker uses.
  Result<std::optional<std::string_view>> String() {
    if (left_.empty()) return Malformed();
    const bool huffman = (peek() & 0x80) != 0;
    WC_ASSIGN_OR_RETURN(const uint64_t size, Integer(7));
    if (size > left_.size()) return Malformed();
    const std::string_view text = left_.substr(0, size);
    left_.remove_prefix(size);
    return huffman ? std::nullopt : std::optional(text);
  }

 private:
  uint8_t Take() {
    const auto byte = static_cast<uint8_t>(left_.front());
    left_.remove_prefix(1);
    return byte;
  }
  std::string_view left_;
};

void Keep(FirstRequest& request, uint64_t index, std::string_view name, std::string_view value) {
  if (name == ":path" || index == kPathIndexes[0] || index == kPathIndexes[1]) request.path = value;
  if (name == "authorization" || index == kAuthorizationIndex) request.authorization = value;
}

Status ReadHeaders(std::string_view block, FirstRequest& request) {
  HeaderReader reader(block);
  while (!reader.empty()) {
    const uint8_t first = reader.peek();
    if ((first & 0x80) != 0) {  // A whole header of a table: none that is looked for.
      WC_RETURN_IF_ERROR(reader.Integer(7).status());
      continue;
    }
    if ((first & 0xE0) == 0x20) {  // The size of the dynamic table.
      WC_RETURN_IF_ERROR(reader.Integer(5).status());
      continue;
    }
    WC_ASSIGN_OR_RETURN(const uint64_t index, reader.Integer((first & 0x40) != 0 ? 6 : 4));
    std::optional<std::string_view> name = "";
    if (index == 0) {
      WC_ASSIGN_OR_RETURN(name, reader.String());
    }
    WC_ASSIGN_OR_RETURN(const auto value, reader.String());
    if (name && value) Keep(request, index, *name, *value);
  }
  return Status::Ok();
}

/// The header block inside a HEADERS frame.
Result<std::string_view> BlockOf(std::string_view payload, uint8_t flags) {
  size_t padding = 0;
  size_t front = 0;
  if ((flags & kPadded) != 0) {
    if (payload.empty()) return Malformed();
    padding = static_cast<uint8_t>(payload.front());
    front = 1;
  }
  if ((flags & kHasPriority) != 0) front += 5;
  if ((flags & kEndHeaders) == 0 || front + padding > payload.size()) return Malformed();
  return payload.substr(front, payload.size() - front - padding);
}

std::string Number(size_t value, int bytes) {
  std::string number;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) number += static_cast<char>(value >> shift);
  return number;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload) {
  return StrCat(Number(payload.size(), 3), Number(type, 1), Number(flags, 1), Number(stream, 4), payload);
}

void PutString(std::string& block, std::string_view text) {
  size_t size = text.size();
  if (size < 0x7F) {
    block += static_cast<char>(size);
  } else {
    block += '\x7F';
    for (size -= 0x7F; size >= 0x80; size >>= 7) block += static_cast<char>(0x80 | (size & 0x7F));
    block += static_cast<char>(size);
  }
  block += text;
}

void PutHeader(std::string& block, std::string_view name, std::string_view value) {
  block += '\0';  // Literal, without indexing, with a new name.
  PutString(block, name);
  PutString(block, value);
}

}  // namespace

std::string EmptySettings() { return Frame(kSettings, 0, 0, ""); }

Result<std::optional<FirstRequest>> ReadFirstRequest(std::string_view bytes) {
  const std::string_view preface = kClientPreface.substr(0, bytes.size());
  if (!bytes.starts_with(preface)) return Status(Code::kProtocol, "no HTTP/2 client");
  bytes.remove_prefix(preface.size());
  while (bytes.size() >= kFrameHead) {
    const uint32_t size = BigEndian(bytes.substr(0, 3));
    const auto type = static_cast<uint8_t>(bytes[3]);
    const auto flags = static_cast<uint8_t>(bytes[4]);
    const uint32_t stream = BigEndian(bytes.substr(5, 4)) & 0x7FFFFFFF;
    if (type == kData || type == kResetStream || type == kContinuation)
      return Status(Code::kProtocol, "no request comes first");
    if (bytes.size() < kFrameHead + size) return std::optional<FirstRequest>();
    const std::string_view payload = bytes.substr(kFrameHead, size);
    bytes.remove_prefix(kFrameHead + size);
    if (type != kHeaders) continue;
    FirstRequest request{.stream = stream, .path = {}, .authorization = {}};
    WC_ASSIGN_OR_RETURN(const std::string_view block, BlockOf(payload, flags));
    WC_RETURN_IF_ERROR(ReadHeaders(block, request));
    return std::optional(std::move(request));
  }
  return std::optional<FirstRequest>();
}

std::string RefusalOf(uint32_t stream, int grpc_status, std::string_view message) {
  std::string block(1, kStatus200);
  PutHeader(block, "content-type", "application/grpc");
  PutHeader(block, "grpc-status", StrCat(grpc_status));
  PutHeader(block, "grpc-message", message);
  const std::string no_error = Number(0, 4);
  return StrCat(Frame(kHeaders, kEndStream | kEndHeaders, stream, block),
                Frame(kGoAway, 0, 0, StrCat(Number(stream, 4), no_error)));
}

}  // namespace weightcast::control
