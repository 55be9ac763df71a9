#include "stream/client_hello.h"

#include <algorithm>

#include "base/strings.h"

namespace weightcast::stream {
namespace {

constexpr size_t kRecordHead = 5;
constexpr size_t kHandshakeHead = 4;
constexpr uint8_t kHandshakeRecord = 22;
constexpr uint8_t kAlertRecord = 21;
constexpr uint8_t kClientHelloType = 1;
constexpr uint16_t kTls12 = 0x0303;
constexpr uint16_t kTls13 = 0x0304;
constexpr size_t kRandomBytes = 32;
constexpr size_t kMostSessionBytes = 32;
constexpr size_t kMostProtocols = 8;
enum Extension : uint16_t { kAlpn = 16, kPreSharedKey = 41, kEarlyData = 42, kSupportedVersions = 43 };

constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

constexpr std::string_view kFindOut = "; find out what connects from there";

Status Malformed(std::string_view what) {
  return Error(Code::kProtocol,
               "it is not a weightcast process: its ClientHello (first TLS message) is malformed: ", what,
               kFindOut);
}

/// Takes big-endian numbers and prefixed strings from the front. After the first that is not there all are
/// empty.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  uint32_t Number(size_t size) {
    uint32_t value = 0;
    for (const char byte : Raw(size)) value = value << 8 | static_cast<uint8_t>(byte);
    return value;
  }
  std::string_view Raw(size_t size) {
    ok_ = ok_ && size <= left_.size();
    if (!ok_) return {};
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }
  /// Bytes after their own length of `prefix` bytes.
  std::string_view Prefixed(size_t prefix) { return Raw(Number(prefix)); }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool done() const { return ok_ && left_.empty(); }
  [[nodiscard]] bool more() const { return ok_ && !left_.empty(); }

 private:
  std::string_view left_;
  bool ok_ = true;
};

Status ReadProtocols(std::string_view extension, ClientHello& hello) {
  Reader outer(extension);
  Reader list(outer.Prefixed(2));
  if (!outer.done()) return Malformed("ALPN");
  while (list.more() && hello.protocols.size() < kMostProtocols)
    hello.protocols.emplace_back(list.Prefixed(1));
  return list.done() ? Status::Ok() : Malformed("ALPN");
}

Status ReadIdentity(std::string_view extension, ClientHello& hello) {
  Reader outer(extension);
  Reader identities(outer.Prefixed(2));
  Reader binders(outer.Prefixed(2));
  if (!outer.done()) return Malformed("pre-shared key");
  hello.identity = identities.Prefixed(2);
  identities.Raw(4);  // The age of a ticket.
  if (!identities.done() || hello.identity.empty()) return Malformed("not exactly one pre-shared key");
  binders.Prefixed(1);
  return binders.done() ? Status::Ok() : Malformed("not exactly one binder");
}

Status ReadVersions(std::string_view extension, ClientHello& hello) {
  Reader outer(extension);
  Reader versions(outer.Prefixed(1));
  if (!outer.done()) return Malformed("versions");
  while (versions.more()) hello.tls13 = versions.Number(2) == kTls13 || hello.tls13;
  return versions.done() ? Status::Ok() : Malformed("versions");
}

Status ReadExtensions(std::string_view bytes, ClientHello& hello) {
  Reader reader(bytes);
  std::vector<uint32_t> seen;
  while (reader.more()) {
    const uint32_t type = reader.Number(2);
    const std::string_view extension = reader.Prefixed(2);
    if (!reader.ok()) return Malformed("an extension is cut off");
    if (std::ranges::find(seen, type) != seen.end()) return Malformed("an extension comes twice");
    seen.push_back(type);
    if (type == kEarlyData) return Malformed("early data");
    if (type == kPreSharedKey && reader.more())
      return Malformed("the pre-shared key is not the last extension");
    if (type == kAlpn) WC_RETURN_IF_ERROR(ReadProtocols(extension, hello));
    if (type == kPreSharedKey) WC_RETURN_IF_ERROR(ReadIdentity(extension, hello));
    if (type == kSupportedVersions) WC_RETURN_IF_ERROR(ReadVersions(extension, hello));
  }
  return reader.done() ? Status::Ok() : Malformed("extensions");
}

Status ReadBody(std::string_view body, ClientHello& hello) {
  Reader reader(body);
  const uint32_t version = reader.Number(2);
  reader.Raw(kRandomBytes);
  const std::string_view session = reader.Prefixed(1);
  const std::string_view suites = reader.Prefixed(2);
  const std::string_view compressions = reader.Prefixed(1);
  const std::string_view extensions = reader.Prefixed(2);
  if (!reader.done() || version != kTls12 || session.size() > kMostSessionBytes || suites.empty() ||
      suites.size() % 2 != 0 || compressions.empty())
    return Malformed("its fields");
  return ReadExtensions(extensions, hello);
}

/// Ok while it can still become a ClientHello in one record.
Status CheckHead(std::string_view bytes) {
  constexpr std::string_view kBegin = "\x16\x03";
  if (!bytes.starts_with(kBegin.substr(0, bytes.size())))
    return Error(Code::kProtocol, "it is not a weightcast process: it does not speak TLS", kFindOut);
  if (bytes.size() < kRecordHead) return Status::Ok();
  const size_t size = Reader(bytes.substr(3)).Number(2);
  if (size + kRecordHead > kMostHelloBytes)
    return Error(Code::kProtocol, "it is not a weightcast process: its first TLS message has more than ",
                 kMostHelloBytes, " bytes", kFindOut);
  if (size < kHandshakeHead) return Malformed("too short");
  if (bytes.size() > size + kRecordHead) return Malformed("more follows it at once");
  if (bytes.size() > kRecordHead && static_cast<uint8_t>(bytes[kRecordHead]) != kClientHelloType)
    return Malformed("another message");
  return Status::Ok();
}

}  // namespace

Result<std::optional<ClientHello>> ReadClientHello(std::string_view bytes) {
  static_assert(kHandshakeRecord == 0x16);
  WC_RETURN_IF_ERROR(CheckHead(bytes));
  if (bytes.size() < kRecordHead) return std::optional<ClientHello>();
  const size_t size = Reader(bytes.substr(3)).Number(2);
  if (bytes.size() < size + kRecordHead) return std::optional<ClientHello>();
  Reader message(bytes.substr(kRecordHead + 1));
  const std::string_view body = message.Prefixed(3);
  if (!message.done()) return Malformed("its length is not its record's");
  ClientHello hello;
  WC_RETURN_IF_ERROR(ReadBody(body, hello));
  return std::optional(std::move(hello));
}

bool IsHttp2Client(std::string_view bytes) {
  const size_t size = std::min(bytes.size(), kHttp2Preface.size());
  return size > 0 && bytes.substr(0, size) == kHttp2Preface.substr(0, size);
}

bool IsHttp2Server(std::string_view bytes) {
  // A SETTINGS frame of stream 0: length (its first byte is 0), type 4, flags 0.
  return bytes.size() >= 9 && bytes[0] == 0 && bytes[3] == 4 && bytes[4] == 0 &&
         bytes.substr(5, 4) == std::string_view("\0\0\0\0", 4);
}

std::string AlertRecord(Alert alert) {
  constexpr char kFatal = 2;
  return {static_cast<char>(kAlertRecord), 3, 3, 0, 2, kFatal, static_cast<char>(alert)};
}

}  // namespace weightcast::stream
