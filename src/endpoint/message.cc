#include "endpoint/message.h"

#include <algorithm>

#include "base/bytes.h"

namespace weightcast::endpoint {

std::string Printable(std::string_view text, size_t limit) {
  std::string out(text.substr(0, limit));
  for (char& character : out) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte >= 0x7f) character = '?';
  }
  return out;
}

std::string EncodeOutcome(const Status& status) {
  ByteWriter out;
  out.Put(static_cast<uint8_t>(status.code()));
  out.PutString(std::string_view(status.message()).substr(0, kMaxReason));
  return out.Take();
}

std::optional<Status> ParseOutcome(std::string_view payload) {
  ByteReader in(payload);
  const auto code = in.Get<uint8_t>();
  const auto text = in.GetString(kMaxReason);
  if (!in.AtEnd() || code > static_cast<uint8_t>(Code::kInternal)) return std::nullopt;
  return Status(static_cast<Code>(code), Printable(text));
}

}  // namespace weightcast::endpoint
